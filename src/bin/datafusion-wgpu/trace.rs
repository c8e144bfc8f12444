//! `--gpu-trace FILE`: the spans of queries, GPU operators, uploads, compilations and kernels in the Trace Event Format that
//! Perfetto and Chrome's `about:tracing` open.
//!
//! Spans of different partitions overlap, so each is written as an asynchronous slice with an id of its own. (The crate
//! tracing-chrome gives all spans of one root the same id, which makes overlapping slices end each other.)

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use datafusion::error::Result;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::error::problem;

/// A trace file that is being written.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    started: Instant,
    next: AtomicU64,
    output: Mutex<Output>,
}

#[derive(Debug)]
struct Output {
    file: BufWriter<File>,
    events: u64,
    /// The first failure; nothing more is written after it.
    failed: Option<io::Error>,
    /// The end was written: spans of work that nobody waited for may still close.
    ended: bool,
}

/// What is known of a span before it ends.
struct Open {
    id: u64,
    args: Map<String, Value>,
}

impl Trace {
    /// Creates the file; one that exists is replaced.
    ///
    /// # Errors
    /// When the file can't be created.
    pub fn create(path: &Path) -> Result<Arc<Self>> {
        let failed =
            |error: io::Error| problem(format!("cannot write the trace {}: {error}", path.display()));
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        // The array form: readers take one without its end, so what a killed program leaves can be read.
        file.write_all(b"[").map_err(failed)?;
        let trace = Self {
            path: path.to_owned(),
            started: Instant::now(),
            next: AtomicU64::new(1),
            output: Mutex::new(Output { file, events: 0, failed: None, ended: false }),
        };
        let name = json!({ "name": "datafusion-wgpu" });
        trace.write(&json!({ "ph": "M", "pid": 1, "name": "process_name", "args": name }));
        Ok(Arc::new(trace))
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The first failure of writing it.
    pub fn finish(&self) -> Result<()> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.ended = true;
        let ended = match output.failed.take() {
            Some(error) => Err(error),
            None => output.file.write_all(b"\n]\n").and_then(|()| output.file.flush()),
        };
        ended.map_err(|error| problem(format!("the trace {} is not whole: {error}", self.path.display())))
    }

    fn write(&self, event: &Value) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.failed.is_some() || output.ended {
            return;
        }
        let separator: &[u8] = if output.events == 0 { b"\n" } else { b",\n" };
        let written = output
            .file
            .write_all(separator)
            .and_then(|()| serde_json::to_writer(&mut output.file, event).map_err(io::Error::from))
            .and_then(|()| output.file.flush());
        output.events += 1;
        output.failed = written.err();
    }

    /// One end of a span's slice; `ph` is `b` or `e`.
    fn slice(&self, ph: &str, id: u64, span: &Metadata<'_>, args: &Value) {
        let (ts, name, cat) = (self.now(), span.name(), category(span.target()));
        self.write(&json!({
            "ph": ph, "ts": ts, "pid": 1, "tid": 1, "id": id, "name": name, "cat": cat, "args": args
        }));
    }

    /// Time since the file was created. The format counts in microseconds; fractions are allowed.
    fn now(&self) -> f64 {
        self.started.elapsed().as_nanos() as f64 / 1e3
    }
}

/// Hands spans and events to a [`Trace`].
#[derive(Debug)]
pub struct TraceLayer(pub Arc<Trace>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TraceLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut args = Map::new();
        attributes.record(&mut JsonFields(&mut args));
        if let Some(span) = context.span(id) {
            let number = self.0.next.fetch_add(1, Ordering::Relaxed);
            self.0.slice("b", number, span.metadata(), &Value::Object(args.clone()));
            span.extensions_mut().insert(Open { id: number, args });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            values.record(&mut JsonFields(&mut open.args));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(mut open) = span.extensions_mut().remove::<Open>() else { return };
        // What it belongs to, since slices of their own ids don't nest.
        for parent in span.scope().skip(1) {
            if let Some(parent_open) = parent.extensions().get::<Open>() {
                let own = ["node", "query_id"].into_iter();
                for (field, value) in own.filter_map(|f| parent_open.args.get(f).map(|v| (f, v))) {
                    open.args.entry(field).or_insert_with(|| value.clone());
                }
            }
        }
        self.0.slice("e", open.id, span.metadata(), &Value::Object(open.args));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut args = Map::new();
        event.record(&mut JsonFields(&mut args));
        let message = args.remove("message");
        let name = message.as_ref().and_then(Value::as_str).unwrap_or_else(|| event.metadata().name());
        self.0.write(&json!({
            "ph": "i", "s": "p", "ts": self.0.now(), "pid": 1, "tid": 1, "name": name,
            "cat": "log", "args": args
        }));
    }
}

/// `kernel` of `datafusion_wgpu::kernel`.
fn category(target: &str) -> &str {
    target.rsplit("::").next().unwrap_or(target)
}

/// Collects fields as JSON.
struct JsonFields<'a>(&'a mut Map<String, Value>);

impl Visit for JsonFields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}
