//! `gpu_memory()`: who holds device memory, who was promised some, and who waits for it.

use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;

use super::{Snapshot, Source, runtime};

pub(super) const NAME: &str = "gpu_memory";

pub(super) fn table() -> Snapshot {
    let fields = vec![
        Field::new("adapter", DataType::Utf8, false),
        Field::new("holder", DataType::Utf8, true),
        Field::new("state", DataType::Utf8, false),
        Field::new("bytes", DataType::UInt64, false),
    ];
    Snapshot::new(fields, Memory)
}

#[derive(Debug)]
struct Memory;

#[async_trait]
impl Source for Memory {
    async fn rows(&self, schema: SchemaRef, session: &dyn Session) -> Result<RecordBatch> {
        let (mut adapters, mut holders, mut states, mut bytes) = (vec![], vec![], vec![], vec![]);
        for device in runtime(NAME, session)?.devices() {
            let ledger = device.ledger();
            let held = ledger.holders().into_iter().map(|(holder, bytes)| (Some(holder), "held", bytes));
            let promised =
                ledger.promised().into_iter().map(|(holder, bytes)| (Some(holder), "promised", bytes));
            let waiting =
                ledger.waiting().into_iter().map(|(holder, bytes)| (Some(holder), "waiting", bytes));
            let idle = Some((None, "idle", ledger.idle())).filter(|(_, _, bytes)| *bytes > 0);
            for (holder, state, count) in held.chain(promised).chain(waiting).chain(idle) {
                adapters.push(device.caps().name.clone());
                holders.push(holder);
                states.push(state);
                bytes.push(count);
            }
        }
        Ok(RecordBatch::try_new(
            schema,
            vec![
                Arc::new(StringArray::from(adapters)),
                Arc::new(StringArray::from(holders)),
                Arc::new(StringArray::from(states)),
                Arc::new(UInt64Array::from(bytes)),
            ],
        )?)
    }
}
