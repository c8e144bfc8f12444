//! `gpu_options()`: the `gpu.*` options as this session has them.

use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::config::{ConfigEntry, ExtensionOptions};

use crate::config::GpuOptions;

use super::{Snapshot, Source};

pub(super) const NAME: &str = "gpu_options";

pub(super) fn table() -> Snapshot {
    let text = |name| Field::new(name, DataType::Utf8, false);
    Snapshot::new(vec![text("name"), text("value"), text("default"), text("description")], Options)
}

#[derive(Debug)]
struct Options;

#[async_trait]
impl Source for Options {
    async fn rows(&self, schema: SchemaRef, session: &dyn Session) -> Result<RecordBatch> {
        let set = GpuOptions::from_config(session.config_options()).entries();
        let defaults = GpuOptions::default().entries();
        let value = |entry: &ConfigEntry| entry.value.clone().unwrap_or_default();
        let column = |values: Vec<String>| Arc::new(StringArray::from(values));
        Ok(RecordBatch::try_new(
            schema,
            vec![
                column(set.iter().map(|entry| entry.key.clone()).collect()),
                column(set.iter().map(value).collect()),
                column(defaults.iter().map(value).collect()),
                column(set.iter().map(|entry| entry.description.to_owned()).collect()),
            ],
        )?)
    }
}
