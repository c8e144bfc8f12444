//! Look-up tables on the host: a function's results for each distinct value of a column.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{cast, concat, take};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use crate::error::{GpuError, GpuResult};

/// Values of an intermediate result that a function is given at a time.
const CHUNK_VALUES: usize = 8192;

/// A function of one column. What it is for a value does not depend on other values, but where [`Self::at_once`] says so.
pub trait ValueFunction: Any + Debug + Send + Sync {
    /// The results for `values`; where it raises, the result is void and its poison bit set.
    ///
    /// # Errors
    /// [`GpuError::Internal`] where results cannot be put together.
    fn evaluate(&self, values: &ArrayRef) -> GpuResult<Results>;

    /// The results for several arrays of values, one after another.
    ///
    /// # Errors
    /// Those of [`Self::evaluate`].
    fn evaluate_all(&self, chunks: &[ArrayRef]) -> GpuResult<Results> {
        let parts = chunks.iter().map(|chunk| self.evaluate(chunk)).collect::<GpuResult<Vec<_>>>()?;
        Results::concat(&parts)
    }

    /// Whether it must see all values of the batch at once.
    fn at_once(&self) -> bool {
        false
    }

    /// The words of the table of `results`, and the first word of the values.
    ///
    /// # Errors
    /// Results that do not fit the table's type.
    fn pack(&self, results: &Results) -> GpuResult<(Vec<u32>, usize)>;

    /// Whether it may raise. If one that may not does, [`Table::raised`] is set.
    fn may_raise(&self) -> bool;

    /// Whether `other` is the same function.
    fn same(&self, other: &dyn ValueFunction) -> bool;
}

/// Results of a function, one a value.
#[derive(Debug, Clone)]
pub struct Results {
    /// Results of the function's own Arrow type; plain ones where that is a dictionary with too few keys for all of them.
    pub values: ArrayRef,
    /// Set where the function raised; absent where it never did.
    pub poison: Option<BooleanBuffer>,
}

impl Results {
    /// Whether the function raised for the value at `index`.
    pub fn is_poisoned(&self, index: usize) -> bool {
        self.poison.as_ref().is_some_and(|poison| index < poison.len() && poison.value(index))
    }

    /// Several results one after another.
    ///
    /// # Errors
    /// [`GpuError::Internal`] where Arrow cannot concatenate them.
    pub fn concat(parts: &[Results]) -> GpuResult<Results> {
        if let [one] = parts {
            return Ok(one.clone());
        }
        let arrays: Vec<&dyn Array> = parts.iter().map(|part| part.values.as_ref()).collect();
        let values =
            concat(&arrays).or_else(|error| match parts.first().map(|part| part.values.data_type()) {
                // All together have more distinct values than the dictionary's type has keys.
                Some(DataType::Dictionary(_, plain)) => {
                    let unpacked = arrays.iter().map(|array| cast(*array, plain));
                    let unpacked = unpacked.collect::<Result<Vec<_>, _>>()?;
                    concat(&unpacked.iter().map(AsRef::as_ref).collect::<Vec<_>>())
                }
                _ => Err(error),
            });
        let values = values.map_err(|error| GpuError::Internal(format!("results of a function: {error}")))?;
        let poison = parts.iter().any(|part| part.poison.is_some()).then(|| {
            parts.iter().flat_map(|part| (0..part.values.len()).map(|at| part.is_poisoned(at))).collect()
        });
        Ok(Results { values, poison })
    }
}

/// What a table holds.
#[derive(Debug, Clone)]
pub enum TableSpec {
    /// A function of a column.
    Function {
        /// Source column whose codes index the table.
        column: usize,
        /// Table whose results the function is applied to, instead of the column's values.
        input: Option<usize>,
        /// The function.
        function: Arc<dyn ValueFunction>,
    },
    /// A list of constants, as kernels search it.
    List(UInt32Array),
}

impl TableSpec {
    /// The source column whose codes index the table.
    pub fn column(&self) -> Option<usize> {
        match self {
            TableSpec::Function { column, .. } => Some(*column),
            TableSpec::List(_) => None,
        }
    }

    /// The table whose results the function is applied to.
    pub fn input(&self) -> Option<usize> {
        match self {
            TableSpec::Function { input, .. } => *input,
            TableSpec::List(_) => None,
        }
    }
}

/// A finished table.
#[derive(Debug)]
pub struct Table {
    /// Results by code.
    pub results: Results,
    /// The table as a kernel reads it.
    pub words: UInt32Array,
    /// First word of the values.
    pub values_at: usize,
    /// The CPU must decide for the whole batch: a function that was not expected to raise did, so that no kernel looks for the
    /// poison, or one raised for a value of an Arrow dictionary, which DataFusion evaluates whether a row has it or not.
    pub raised: bool,
}

impl Table {
    /// Host bytes of the table.
    pub fn host_bytes(&self) -> usize {
        let poison = self.results.poison.as_ref().map_or(0, |poison| poison.len() / 8);
        self.results.values.get_array_memory_size() + 4 * self.words.len() + poison
    }

    /// The results by `codes`, as arrays of `data_type`, which is the function's own.
    ///
    /// # Errors
    /// Codes that the table does not have, and results that do not fit a dictionary's keys.
    pub fn take(&self, codes: &dyn Array, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
        let taken = take(&self.results.values, codes, None)?;
        if taken.data_type() == data_type { Ok(taken) } else { cast(&taken, data_type) }
    }
}

/// The table of `function` over the values of `input`, or over a dictionary's chunks.
///
/// # Errors
/// Those of the function.
pub(crate) async fn table(
    function: &Arc<dyn ValueFunction>,
    chunks: &[ArrayRef],
    input: Option<&Table>,
) -> GpuResult<Table> {
    let chunks = match input {
        None => chunks.to_vec(),
        Some(input) => {
            let values = &input.results.values;
            let starts = (0..values.len()).step_by(CHUNK_VALUES);
            starts.map(|at| values.slice(at, CHUNK_VALUES.min(values.len() - at))).collect()
        }
    };
    let poison = input.and_then(|input| input.results.poison.clone());
    let raised_before = input.is_some_and(|input| input.raised);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = if function.at_once() { chunks.len() } else { chunks.len().div_ceil(cores) }.max(1);
    let tasks = chunks.chunks(share).map(|chunks| {
        let (chunks, function) = (chunks.to_vec(), Arc::clone(function));
        blocking(move || function.evaluate_all(&chunks))
    });
    let parts = futures::future::try_join_all(tasks).await?;
    let function = Arc::clone(function);
    blocking(move || {
        let mut results = Results::concat(&parts)?;
        let raised = raised_before || (results.poison.is_some() && !function.may_raise());
        // What was made of a value that raised is as void as that.
        results.poison = match (results.poison, poison) {
            (Some(own), Some(before)) => Some(&own | &before),
            (own, before) => own.or(before),
        };
        let (words, values_at) = function.pack(&results)?;
        Ok(Table { results, words: words.into(), values_at, raised })
    })
    .await
}

/// Whether the function raises for a value in one of the arrays.
///
/// # Errors
/// Those of the function.
pub(crate) async fn raises(function: &Arc<dyn ValueFunction>, arrays: Vec<ArrayRef>) -> GpuResult<bool> {
    let function = Arc::clone(function);
    blocking(move || {
        for array in &arrays {
            if function.evaluate(array)?.poison.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await
}

/// Runs work of some milliseconds where it holds up no other task; in place where there is no runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> GpuResult<T> + Send + 'static,
) -> GpuResult<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => match runtime.spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => Err(GpuError::Internal(format!("a task of the blocking pool failed: {error}"))),
        },
        Err(_) => work(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, DictionaryArray};
    use arrow::datatypes::Int8Type;

    use super::*;

    fn part(first: usize) -> Results {
        let words = (first..first + 100).map(|at| format!("w{at}")).collect::<Vec<_>>();
        let array: DictionaryArray<Int8Type> = words.iter().map(|word| Some(word.as_str())).collect();
        Results { values: Arc::new(array), poison: None }
    }

    /// Chunks of a batch have dictionaries that fit their keys, all together have not.
    #[test]
    fn results_with_few_keys_are_unpacked() {
        let results = Results::concat(&[part(0), part(100), part(200)]).unwrap();
        assert_eq!(results.values.len(), 300);
        let data_type = part(0).values.data_type().clone();
        assert_ne!(results.values.data_type(), &data_type);
        let table = Table { results, words: UInt32Array::from(vec![0]), values_at: 0, raised: false };
        let codes = UInt32Array::from(vec![299, 0, 299, 150]);
        let taken = table.take(&codes, &data_type).unwrap();
        assert_eq!(taken.data_type(), &data_type);
        let plain = cast(&taken, &DataType::Utf8).unwrap();
        let words: Vec<_> = plain.as_string::<i32>().iter().flatten().collect();
        assert_eq!(words, ["w299", "w0", "w299", "w150"]);
        let all = UInt32Array::from_iter_values(0..300);
        assert!(table.take(&all, &data_type).is_err(), "no such array exists");
    }

    #[test]
    fn results_that_fit_stay_packed() {
        let results = Results::concat(&[part(0), part(0)]).unwrap();
        assert_eq!(results.values.data_type(), part(0).values.data_type());
    }
}
