//! Filter and computed projections with the result on the host, rows in order.

use arrow::array::ArrayRef;
use arrow::buffer::BooleanBuffer;

/// Answer for one segment.
#[derive(Debug, Clone)]
pub struct SelectResult {
    /// Selected rows; `None` when the program has no selection (every row).
    pub mask: Option<BooleanBuffer>,
    /// Number of selected rows.
    pub selected: usize,
    /// Output expressions at the selected rows, in row order, in the expressions' Arrow types.
    pub outputs: Vec<ArrayRef>,
    /// A live row met an arithmetic fault: the rest is void and the CPU decides.
    pub fault: bool,
}
