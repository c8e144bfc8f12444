//! `gpu_devices()`: the adapters, and which of them this session uses.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;

use crate::config::{GpuOptions, Placement};
use crate::memory::{AdapterInfo, AdapterKind, AdapterSelector, GpuRuntime};
use crate::optimizer::explain::off_the_workers;
use crate::optimizer::{Reason, unusable};
use crate::physical_plan::selector;

use super::{Snapshot, Source, runtime};

pub(super) const NAME: &str = "gpu_devices";

pub(super) fn table() -> Snapshot {
    let fields = vec![
        Field::new("index", DataType::UInt64, false),
        Field::new("name", DataType::Utf8, false),
        Field::new("kind", DataType::Utf8, false),
        Field::new("backend", DataType::Utf8, false),
        Field::new("driver", DataType::Utf8, false),
        Field::new("driver_info", DataType::Utf8, false),
        Field::new("int64", DataType::Boolean, false),
        Field::new("float64", DataType::Boolean, false),
        Field::new("memory_bytes", DataType::UInt64, true),
        Field::new("selected", DataType::Boolean, false),
        Field::new("usable", DataType::Boolean, false),
        Field::new("why_not", DataType::Utf8, true),
    ];
    Snapshot::new(fields, Devices)
}

#[derive(Debug)]
struct Devices;

#[async_trait]
impl Source for Devices {
    async fn rows(&self, schema: SchemaRef, session: &dyn Session) -> Result<RecordBatch> {
        let runtime = runtime(NAME, session)?;
        let options = GpuOptions::from_config(session.config_options());
        // The first enumeration loads the drivers, and the first selection opens a device.
        off_the_workers(move || batch(schema, &runtime, &options)).await?
    }
}

fn batch(schema: SchemaRef, runtime: &GpuRuntime, options: &GpuOptions) -> Result<RecordBatch> {
    let infos = runtime.adapters();
    let selected = runtime.find(&selector(options)).ok();
    let unmatched = unmatched(runtime, options);
    let why_not: Vec<Option<String>> = infos
        .iter()
        .map(|info| {
            unmatched.clone().or_else(|| why_not(runtime, info, selected == Some(info.index), options))
        })
        .collect();
    let text = |of: fn(&AdapterInfo) -> &str| Arc::new(StringArray::from_iter_values(infos.iter().map(of)));
    let flags =
        |of: fn(&AdapterInfo) -> bool| Arc::new(BooleanArray::from(infos.iter().map(of).collect::<Vec<_>>()));
    let memory = infos.iter().map(|info| runtime.capabilities(info.index).and_then(|caps| caps.memory_bytes));
    let chosen: Vec<bool> = infos.iter().map(|info| selected == Some(info.index)).collect();
    let usable: Vec<bool> = why_not.iter().map(Option::is_none).collect();
    Ok(RecordBatch::try_new(
        schema,
        vec![
            Arc::new(UInt64Array::from_iter_values(infos.iter().map(|info| info.index as u64))),
            text(|info| &info.name),
            text(|info| info.kind.name()),
            text(|info| &info.backend),
            text(|info| &info.driver),
            text(|info| &info.driver_info),
            flags(|info| info.int64),
            flags(|info| info.float64),
            Arc::new(UInt64Array::from_iter(memory)),
            Arc::new(BooleanArray::from(chosen)),
            Arc::new(BooleanArray::from(usable)),
            Arc::new(StringArray::from_iter(why_not)),
        ],
    )?)
}

/// Says so where `gpu.adapter` names an adapter that is not there: the session then uses none of those that are.
fn unmatched(runtime: &GpuRuntime, options: &GpuOptions) -> Option<String> {
    let any_kind = AdapterSelector { allow_software: true, ..selector(options) };
    let missing = !options.adapter.trim().is_empty() && runtime.find(&any_kind).is_err();
    missing.then(|| format!("gpu.adapter = '{}' matches no adapter", options.adapter))
}

/// Why this session could not use an adapter. The selected one is opened, unless the GPU is switched off; the others only
/// show what their drivers say, or what was found when somebody opened them.
fn why_not(runtime: &GpuRuntime, info: &AdapterInfo, selected: bool, options: &GpuOptions) -> Option<String> {
    if info.kind == AdapterKind::Software && !options.allow_software_adapter {
        return Some("a software adapter; gpu.allow_software_adapter = true lets it be used".to_owned());
    }
    if !info.int64 {
        return Some(Reason::NoInt64 { adapter: info.name.clone() }.to_string());
    }
    let on = options.enabled && options.placement != Placement::Off;
    let device = if selected && on {
        match runtime.select(&selector(options)) {
            Ok(device) => Some(device),
            Err(error) => return Some(error.to_string()),
        }
    } else {
        runtime.opened(info.index)
    };
    unusable(device?.caps()).map(|reason| reason.to_string())
}
