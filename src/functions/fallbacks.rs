//! `gpu_fallbacks()`: the last times that a running query of this session went to the CPU after all. What other sessions of the
//! process did, with their SQL, is not shown: the program has [`Observers::recent_fallbacks`] for that.
//!
//! [`Observers::recent_fallbacks`]: crate::observe::Observers::recent_fallbacks

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::{BooleanArray, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::datatypes::{DataType, Field, SchemaRef, TimeUnit};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;

use crate::observe::FallbackEvent;

use super::{Snapshot, Source, runtime};

pub(super) const NAME: &str = "gpu_fallbacks";
/// As an offset, which Arrow understands without a time zone database.
const UTC: &str = "+00:00";

pub(super) fn table() -> Snapshot {
    let fields = vec![
        Field::new("time", DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())), false),
        Field::new("session_id", DataType::Utf8, false),
        Field::new("query_id", DataType::UInt64, false),
        Field::new("query", DataType::Utf8, false),
        Field::new("node", DataType::Utf8, false),
        Field::new("scope", DataType::Utf8, false),
        Field::new("code", DataType::Utf8, false),
        Field::new("message", DataType::Utf8, false),
        Field::new("forbidden", DataType::Boolean, false),
    ];
    Snapshot::new(fields, Fallbacks)
}

#[derive(Debug)]
struct Fallbacks;

#[async_trait]
impl Source for Fallbacks {
    async fn rows(&self, schema: SchemaRef, session: &dyn Session) -> Result<RecordBatch> {
        let mut events = runtime(NAME, session)?.observers().recent_fallbacks();
        events.retain(|event| event.session_id == session.session_id());
        batch(schema, &events)
    }
}

fn batch(schema: SchemaRef, events: &[FallbackEvent]) -> Result<RecordBatch> {
    let text =
        |of: fn(&FallbackEvent) -> &str| Arc::new(StringArray::from_iter_values(events.iter().map(of)));
    let times = TimestampMicrosecondArray::from_iter_values(events.iter().map(|event| micros(event.time)));
    Ok(RecordBatch::try_new(
        schema,
        vec![
            Arc::new(times.with_timezone(UTC)),
            text(|event| &event.session_id),
            Arc::new(UInt64Array::from_iter_values(events.iter().map(|event| event.query_id))),
            text(|event| &event.query),
            text(|event| &event.node),
            text(|event| event.scope),
            text(|event| event.code),
            text(|event| &event.message),
            Arc::new(BooleanArray::from(events.iter().map(|event| event.forbidden).collect::<Vec<_>>())),
        ],
    )?)
}

/// Microseconds since 1970; 0 on a machine whose clock is before.
fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::util::pretty::pretty_format_batches;

    use super::*;

    #[test]
    fn events_become_rows() {
        let time = UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        let event = FallbackEvent {
            time,
            session_id: "s".to_owned(),
            query_id: 7,
            query: "SELECT 1".into(),
            node: "GpuFilterExec[0]".to_owned(),
            scope: "batch",
            code: "ArithmeticFault",
            message: "why".to_owned(),
            forbidden: true,
        };
        let rows = batch(table().schema, &[event]).unwrap();
        let shown = pretty_format_batches(&[rows]).unwrap().to_string();
        let row: Vec<&str> = shown.lines().nth(3).unwrap().split('|').map(str::trim).collect();
        let expected = [
            "2023-11-14T22:13:20.123456Z",
            "s",
            "7",
            "SELECT 1",
            "GpuFilterExec[0]",
            "batch",
            "ArithmeticFault",
            "why",
            "true",
        ];
        assert_eq!(row[1..10], expected);
        assert_eq!(micros(UNIX_EPOCH - Duration::from_secs(1)), 0);
    }
}
