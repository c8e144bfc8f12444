//! What a grouping's aggregates accumulate: as few words, and as few updates a row, as their states need.

use std::fmt::Write;
use std::sync::Arc;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::widths::{Class, is_integer};
use crate::kernels::expr::{Expr, Node, ValueType};
use crate::kernels::reduce::{AggregateKind, AggregateSpec, RowOrder, Width};

use super::super::accumulate::{Accumulator, Bits, Fold, Told, sum_words};
use super::super::float::{FloatFold, Window};
use super::super::kernel::Update;
use super::super::plan::{Place, Rows, status};
use super::super::state_type;
use super::{Builder, Function};

/// What tells accumulators apart: how rows come together, the type, words and value, and the condition.
pub(super) type AccumulatorKey = (Fold, ValueType, String, String);

/// What a group keeps a bit of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// That a row has met this condition.
    Row(String),
    /// That one of these words is not 0.
    Words(Vec<u32>),
}

/// An aggregate as [`Builder::aggregate`] leaves it.
pub(super) struct Added {
    /// The condition under which rows contribute.
    counted: String,
    number: Option<usize>,
    value: Option<usize>,
}

impl Builder<'_> {
    /// Adds what aggregate `at` accumulates.
    pub(super) fn aggregate(
        &mut self,
        at: usize,
        spec: &AggregateSpec,
        numbered: bool,
        selected: &str,
    ) -> GpuResult<Added> {
        let ty = state_type(spec)?;
        let mut counted = selected.to_owned();
        if let Some(filter) = &spec.filter {
            let truth = self.emitter.truth(filter)?;
            self.faults.push((counted.clone(), truth.faults));
            counted = self.both(&counted, &truth.value);
        }
        let arg = match (&spec.arg, spec.kind) {
            (_, AggregateKind::CountRows) | (None, _) => None,
            (Some(expr), _) => Some((expr, self.emitter.emit(expr)?)),
        };
        if let Some((_, node)) = &arg {
            self.faults.push((counted.clone(), node.faults.clone()));
            if let Some(valid) = &node.valid
                && !matches!(spec.kind, AggregateKind::FirstRow(_))
            {
                counted = self.both(&counted, valid);
            }
        }
        let number =
            numbered.then(|| self.add(Fold::Count, (ValueType::UInt32, Class::U32), &[], "", &counted));
        let value = match (arg, ty) {
            (Some((_, node)), _) if self.merging && spec.kind == AggregateKind::Count => {
                let words = sum_words(node.class, &node.value);
                Some(self.add(Fold::Count, (ValueType::UInt32, Class::U32), &words, "", &counted))
            }
            (Some((expr, node)), _) if spec.kind == AggregateKind::SumFloat => {
                Some(self.float_sum(at, expr, &node, &counted)?)
            }
            (Some((expr, node)), Some(ty)) => Some(self.value(spec.kind, expr, &node, ty, &counted)?),
            _ => None,
        };
        Ok(Added { counted, number, value })
    }

    /// Where the state of an aggregate is, once all are added. Where nobody needs the number of contributing rows, none is counted for
    /// it: the group's being there tells, the value's words do, or a bit.
    pub(super) fn place(&mut self, added: &Added, selected: &str) -> Place {
        let value = added.value;
        let place = |rows| Place { rows, value };
        if let Some(number) = added.number {
            return place(Rows::Number(number));
        }
        if added.counted == selected {
            return place(Rows::Group);
        }
        let count = (Fold::Count, ValueType::UInt32, String::new(), added.counted.clone());
        if let Some(&count) = self.memo.get(&count) {
            return place(Rows::SomeOf(count));
        }
        let own = value.and_then(|value| self.accumulators.get(value)).filter(|acc| acc.fold.shows_rows());
        let seen = match own {
            Some(acc) => Seen::Words((acc.at..acc.at + acc.fold.words()).collect()),
            None => Seen::Row(added.counted.clone()),
        };
        let known = self.seen.iter().position(|known| *known == seen);
        let bit = known.unwrap_or(self.seen.len());
        if known.is_none() {
            self.seen.push(seen);
        }
        // Accumulators of bits come after all others.
        place(Rows::Bit(self.accumulators.len() + bit / 32, bit as u32 % 32))
    }

    /// Adds the accumulators of bits, 32 each.
    pub(super) fn keep_seen(&mut self, selected: &str) {
        let seen = std::mem::take(&mut self.seen);
        for seen in seen.chunks(32) {
            let (mut bits, mut told) = (vec![], vec![]);
            for (bit, seen) in (0..).zip(seen) {
                match seen {
                    Seen::Row(counted) => bits.push(format!("select(0u, {}u, {counted})", 1u32 << bit)),
                    Seen::Words(words) => told.push(Told { bit, words: words.clone() }),
                }
            }
            let fold = Fold::Seen { stored: !bits.is_empty(), told };
            let bits: Vec<String> =
                (!bits.is_empty()).then(|| self.named(&bits.join(" | "))).into_iter().collect();
            self.add(fold, (ValueType::UInt32, Class::U32), &bits, "", selected);
        }
    }

    fn value(
        &mut self,
        kind: AggregateKind,
        expr: &Arc<Expr>,
        arg: &Node,
        ty: ValueType,
        counted: &str,
    ) -> GpuResult<usize> {
        if kind == AggregateKind::SumAsFloat64 && !is_integer(arg.ty) {
            return Err(GpuError::Internal(format!("{kind} over {}", arg.ty)));
        }
        Ok(match kind {
            AggregateKind::SumInt => {
                let words = self.summands(arg, 2);
                self.add(Fold::Sum { words: 2, signed: true }, (ty, Class::I64), &words, "", counted)
            }
            AggregateKind::SumAsFloat64 => self.rounded_sum(arg, ty, counted),
            AggregateKind::Min | AggregateKind::Max => {
                self.see_floats(arg, counted);
                self.extreme(kind == AggregateKind::Min, expr, arg, counted)
            }
            AggregateKind::FirstRow(order) => self.first(order, expr, arg, counted),
            AggregateKind::BitAnd => self.bits(Bits::And, arg, counted),
            AggregateKind::BitOr => self.bits(Bits::Or, arg, counted),
            AggregateKind::BitXor => self.bits(Bits::Xor, arg, counted),
            _ => self.sum(arg, ty, counted),
        })
    }

    fn bits(&mut self, bits: Bits, arg: &Node, counted: &str) -> usize {
        let words = sum_words(arg.class, &arg.value).into_iter();
        let words = words.map(|word| if bits == Bits::And { format!("~({word})") } else { word });
        let words: Vec<String> = words.map(|word| self.named(&word)).collect();
        let fold = Fold::Bits { words: words.len() as u32, bits };
        self.add(fold, (arg.ty, arg.class), &words, "", counted)
    }

    /// Exact sum in as few words as 2^31 rows need.
    fn sum(&mut self, arg: &Node, ty: ValueType, counted: &str) -> usize {
        let signed = matches!(arg.class, Class::I32 | Class::I64 | Class::Wide);
        let width = match arg.class {
            Class::Wide => 4,
            _ => (u32::from(arg.bits) + 31 + u32::from(signed)).div_ceil(32),
        };
        let words = self.summands(arg, width);
        self.add(Fold::Sum { words: width, signed }, (ty, Class::Wide), &words, "", counted)
    }

    /// A value as the words that are added to a sum of `width` words. Upper words of small values are 0, or all ones, which with the carry
    /// that usually comes change nothing: then memory is left alone.
    fn summands(&mut self, arg: &Node, width: u32) -> Vec<String> {
        let words = sum_words(arg.class, &arg.value);
        let mut words: Vec<String> = words.into_iter().map(|word| self.named(&word)).collect();
        let zero = match arg.class {
            Class::I32 => "0",
            Class::I64 => "0li",
            _ => return words,
        };
        if words.len() < width as usize {
            let sign = self.named(&format!("select(0u, 0xffffffffu, {} < {zero})", arg.value));
            words.resize(width as usize, sign);
        }
        words
    }

    fn rounded_sum(&mut self, arg: &Node, ty: ValueType, counted: &str) -> usize {
        if arg.bits <= 53 {
            return self.sum(arg, ty, counted);
        }
        let text = match arg.class {
            Class::U64 => format!("round53({})", arg.value),
            _ => format!("round53_signed({})", arg.value),
        };
        let value = self.named(&text);
        self.sum(&Node { value, class: Class::Wide, bits: 66, ..arg.clone() }, ty, counted)
    }

    fn extreme(&mut self, min: bool, expr: &Arc<Expr>, arg: &Node, counted: &str) -> usize {
        let top = |text: &str| format!("({text}) ^ 0x80000000u");
        let key = match (arg.ty, arg.class) {
            (ValueType::Float16 | ValueType::Float32, _) => {
                let key = self.emitter.key(arg, false);
                Some(top(&format!("bitcast<u32>({key})")))
            }
            (_, Class::Bool | Class::U32) => sum_words(arg.class, &arg.value).into_iter().next(),
            (_, Class::I32) => Some(top(&format!("bitcast<u32>({})", arg.value))),
            (_, Class::I64) if arg.bits <= 31 => {
                sum_words(arg.class, &arg.value).into_iter().next().map(|low| top(&low))
            }
            _ => None,
        };
        if let Some(key) = key {
            let key = self.named(&if min { format!("~({key})") } else { key });
            return self.add(Fold::Extreme { min }, (arg.ty, arg.class), &[key], "", counted);
        }
        let (value, class) = match arg.ty {
            ValueType::Float64 => (self.emitter.key(arg, false), Class::I64),
            _ => (arg.value.clone(), arg.class),
        };
        let function = self.function(Function { expr: Arc::clone(expr), class, nan: false });
        self.add(Fold::Best { min, function }, (arg.ty, arg.class), &[], &value, counted)
    }

    fn first(&mut self, order: RowOrder, expr: &Arc<Expr>, arg: &Node, counted: &str) -> usize {
        let (value, class) = match arg.class {
            Class::Bool => (format!("select(0u, 1u, {})", arg.value), Class::U32),
            class => (arg.value.clone(), class),
        };
        let function = self.function(Function { expr: Arc::clone(expr), class, nan: false });
        let fold = Fold::First { order, function, nullable: arg.valid.is_some() };
        let valid: Vec<String> = arg.valid.iter().cloned().collect();
        self.add(fold, (ValueType::UInt32, Class::U32), &valid, &value, counted)
    }

    /// The number of an argument function.
    fn function(&mut self, function: Function) -> usize {
        let known = self.functions.iter().position(|known| *known == function);
        known.unwrap_or_else(|| {
            self.functions.push(function);
            self.functions.len() - 1
        })
    }

    /// The exact sum of floats in the window of aggregate `aggregate`.
    fn float_sum(
        &mut self,
        aggregate: usize,
        expr: &Arc<Expr>,
        arg: &Node,
        counted: &str,
    ) -> GpuResult<usize> {
        let key = (arg.value.clone(), counted.to_owned());
        if let Some(&known) = self.sum_memo.get(&key) {
            return Ok(known);
        }
        let unfit = || GpuError::Internal(format!("a sum of floats over {}", arg.ty));
        let width = Width::of(arg.ty).ok_or_else(unfit)?;
        let window = Window::around(width, self.known.limbs.get(aggregate).copied().flatten());
        let nan = Function { expr: Arc::clone(expr), class: Class::U64, nan: true };
        let nan = self.known.special.then(|| self.function(nan));
        let fold = FloatFold { number: self.sums.len(), width, limbs: window.limbs, nan };
        self.sums.push(window);
        let known = self.add(Fold::Float(fold), (arg.ty, arg.class), &[], &arg.value, counted);
        self.sum_memo.insert(key, known);
        Ok(known)
    }

    /// Notes NaN and zeros of a float.
    fn see_floats(&mut self, arg: &Node, counted: &str) {
        let (sign, infinity, suffix) = match arg.ty {
            ValueType::Float16 => (1u64 << 15, 0x7c00u64, "u"),
            ValueType::Float32 => (1 << 31, 0x7f80_0000, "u"),
            ValueType::Float64 => (1 << 63, 0x7ff0_0000_0000_0000, "lu"),
            _ => return,
        };
        let (value, rest) = (&arg.value, sign - 1);
        let cases = [
            (format!("({value} & {rest:#x}{suffix}) > {infinity:#x}{suffix}"), status::NAN),
            (format!("{value} == {sign:#x}{suffix}"), status::NEGATIVE_ZERO),
            (format!("{value} == 0{suffix}"), status::POSITIVE_ZERO),
        ];
        for (condition, bit) in cases {
            let _ = writeln!(self.floats, "    state |= select(0u, {bit}u, {counted} & ({condition}));");
        }
    }

    /// Adds an accumulator, or finds the same one.
    fn add(
        &mut self,
        fold: Fold,
        (ty, class): (ValueType, Class),
        words: &[String],
        value: &str,
        counted: &str,
    ) -> usize {
        let key = (fold.clone(), ty, words.join(",") + value, counted.to_owned());
        if let Some(&known) = self.memo.get(&key) {
            return known;
        }
        let number = self.accumulators.len();
        let acc = Accumulator { fold, at: self.words, ty, class };
        self.updates.push(Update {
            accumulator: number,
            words: words.to_vec(),
            value: value.to_owned(),
            condition: counted.to_owned(),
        });
        self.words += acc.fold.words();
        self.accumulators.push(acc);
        self.memo.insert(key, number);
        number
    }
}
