//! The way in: putting the GPU behind a DataFusion session.

mod planner;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use datafusion::common::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::config::GpuOptions;
use crate::error::GpuResult;
use crate::functions::table_functions;
use crate::memory::GpuRuntime;
use crate::memory::caps::DeviceCaps;
use crate::optimizer::explain::{explain, is_offload};
use crate::optimizer::{CapsSource, GpuOffload, PlacementReport};
use crate::physical_plan::selector;

pub use planner::GpuQueryPlanner;

/// Adds the GPU to a [`SessionStateBuilder`].
pub trait GpuSessionStateBuilderExt: Sized {
    /// Adds the `gpu.*` options, the process's [`shared_runtime`], the optimizer rule, the table functions, and a
    /// [`GpuQueryPlanner`] around the planner. Without an adapter the session works as before. Call it after `with_config`,
    /// `with_query_planner`, `with_table_functions` and `with_table_function_list`, which replace what is there; a builder that
    /// has the rule gets no second one, and a table function of yours that has one of our names stays.
    fn with_gpu(self) -> Self {
        self.with_gpu_runtime(shared_runtime())
    }

    /// The same with a runtime of the caller's.
    fn with_gpu_runtime(self, runtime: Arc<GpuRuntime>) -> Self;
}

impl GpuSessionStateBuilderExt for SessionStateBuilder {
    fn with_gpu_runtime(mut self, runtime: Arc<GpuRuntime>) -> Self {
        let has = |rules: &[Arc<dyn PhysicalOptimizerRule + Send + Sync>]| rules.iter().any(is_offload);
        let known = self.physical_optimizers().as_ref().is_some_and(|optimizer| has(&optimizer.rules))
            || self.physical_optimizer_rules().as_ref().is_some_and(|rules| has(rules));
        let config = self.config().take().unwrap_or_default();
        let functions = self.table_functions().get_or_insert_default();
        for function in table_functions() {
            functions.entry(function.name().to_owned()).or_insert(function);
        }
        let planner = GpuQueryPlanner::around(self.query_planner().take());
        // A configuration or planner set since an earlier call may lack what we put there.
        let extended = self.with_config(completed(config, Arc::clone(&runtime))).with_query_planner(planner);
        if known {
            return extended;
        }
        extended.with_physical_optimizer_rule(Arc::new(GpuOffload::new(runtime)))
    }
}

impl CapsSource for GpuRuntime {
    fn caps(&self, options: &GpuOptions) -> GpuResult<Arc<DeviceCaps>> {
        Ok(Arc::clone(self.select(&selector(options))?.caps()))
    }
}

/// Puts the GPU behind an existing session, in place: tables, functions, settings and the session id stay. Every clone of
/// the context sees it, since they share their state. Registering twice is harmless.
///
/// Statements prepared before (`PREPARE`) have to be prepared again: DataFusion keeps them in a state that has to be rebuilt.
///
/// # Errors
/// None at present; a session without an adapter works as before, and [`placement_report`] says why.
pub fn register_gpu(context: &SessionContext) -> Result<()> {
    register_gpu_runtime(context, shared_runtime())
}

/// The runtime that sessions share unless they are given another: devices are opened and kernels compiled once a process,
/// however many sessions there are.
pub fn shared_runtime() -> Arc<GpuRuntime> {
    static SHARED: LazyLock<Arc<GpuRuntime>> = LazyLock::new(GpuRuntime::new);
    Arc::clone(&SHARED)
}

/// [`register_gpu`] with a runtime of the caller's.
///
/// # Errors
/// None at present.
pub fn register_gpu_runtime(context: &SessionContext, runtime: Arc<GpuRuntime>) -> Result<()> {
    let shared = context.state_ref();
    let mut state = shared.write();
    let known = state.physical_optimizers().iter().any(is_offload);
    let complete = table_functions().iter().all(|f| state.table_functions().contains_key(f.name()));
    if known && complete && GpuQueryPlanner::is(state.query_planner()) {
        return Ok(());
    }
    let create_default_catalog = state.config_options().catalog.create_default_catalog_and_schema;
    let mut extended = SessionStateBuilder::new_from_existing(state.clone())
        .with_session_id(state.session_id().to_owned())
        .with_gpu_runtime(runtime)
        .build();
    // The builder switches this off so as not to overwrite the catalog that is there.
    extended.config_mut().options_mut().catalog.create_default_catalog_and_schema = create_default_catalog;
    keep_functions(&state, &mut extended)?;
    *state = extended;
    Ok(())
}

/// Where each node of `sql`'s plan would run, and why those on the CPU stay there. Nothing is executed.
///
/// # Errors
/// DataFusion's own errors in parsing and planning `sql`; a plan error when the session was not registered, or when `sql` is
/// no query.
pub async fn placement_report(context: &SessionContext, sql: &str) -> Result<PlacementReport> {
    explain(&context.state(), sql).await
}

/// Gives every name the function that it had. The builder registers functions again in any order, so that one which was
/// replaced, and is left under an alias only, may take its name back.
fn keep_functions(from: &SessionState, to: &mut SessionState) -> Result<()> {
    keep(from.scalar_functions(), to, SessionState::scalar_functions, FunctionRegistry::register_udf)?;
    keep(from.aggregate_functions(), to, SessionState::aggregate_functions, FunctionRegistry::register_udaf)?;
    keep(from.window_functions(), to, SessionState::window_functions, FunctionRegistry::register_udwf)?;
    keep(
        from.higher_order_functions(),
        to,
        SessionState::higher_order_functions,
        FunctionRegistry::register_higher_order_function,
    )
}

fn keep<F: ?Sized>(
    functions: &HashMap<String, Arc<F>>,
    state: &mut SessionState,
    current: fn(&SessionState) -> &HashMap<String, Arc<F>>,
    register: impl Fn(&mut SessionState, Arc<F>) -> Result<Option<Arc<F>>>,
) -> Result<()> {
    // Registering one function may take names from another, which the next round gives back.
    for _ in functions {
        let lost: Vec<Arc<F>> = functions
            .iter()
            .filter(|(name, function)| {
                current(state).get(*name).is_none_or(|other| !Arc::ptr_eq(other, function))
            })
            .map(|(_, function)| Arc::clone(function))
            .collect();
        if lost.is_empty() {
            break;
        }
        for function in lost {
            register(state, function)?;
        }
    }
    Ok(())
}

/// The configuration with our options and a runtime; those that are there are kept.
fn completed(mut config: SessionConfig, runtime: Arc<GpuRuntime>) -> SessionConfig {
    if config.options().extensions.get::<GpuOptions>().is_none() {
        config.options_mut().extensions.insert(GpuOptions::default());
    }
    if config.get_extension::<GpuRuntime>().is_none() {
        config.set_extension(runtime);
    }
    config
}
