//! Arrow columns to the device.
use super::column::DeviceColumn;
use super::launch::LaunchScope;
use crate::error::GpuResult;
use crate::kernels::expr::ValueType;
use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
/// Logical type of an Arrow type that can live on the device, or `None`.
pub fn value_type(_data_type: &DataType) -> Option<ValueType> {
    todo!()
}
/// Device bytes that a column takes.
pub fn device_bytes(_data_type: &DataType, _rows: usize, _nullable: bool) -> u64 {
    todo!()
}
/// Uploads columns.
pub async fn upload(
    _scope: &LaunchScope,
    _batches: &[RecordBatch],
    _columns: &[usize],
) -> GpuResult<Vec<DeviceColumn>> {
    todo!()
}
