//! Queries in the manner of ClickBench, over made-up data of the shape of a web analytics table: many columns, most of
//! them skewed; keys of nearly as many values as there are rows; texts that are mostly empty.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Int16Array, Int32Array, Int64Array, StringArray,
    TimestampMicrosecondArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::error::Result;
use rand::Rng;

use super::files::{self, Random, Table, batch, row_count};
use super::flags::RowsArgs;
use super::suite::{Size, Suite, queries};

/// Days since the epoch of 2023-03-01, and days of the data.
const FIRST_DAY: i32 = 19_417;
const DAYS: i32 = 31;
const MICROSECONDS_OF_A_DAY: i64 = 86_400_000_000;
/// The hash of the most frequent address, which a query asks for; those of the others are its multiples.
const URL_HASH: i64 = 2_868_770_270_353_813_623;
/// The most frequent user, whom a query asks for.
const FIRST_USER: i64 = (1 << 62) + 1;
/// Scatters numbers over 64 bits; odd, so that different ones stay different.
const SCATTER: i64 = -7_046_029_254_386_353_131;
/// The most frequent counter, which queries ask for.
const FIRST_COUNTER: i32 = 62;

/// The suite.
pub fn suite(args: &RowsArgs) -> Suite {
    let rows = args.rows;
    let folder = args.common.data.join(format!("clickbench-like-{rows}"));
    let out = folder.clone();
    Suite {
        name: "clickbench-like",
        size: Size::Rows(rows),
        folder,
        tables: vec!["hits"],
        queries: queries(include_str!("clickbench_like.sql")),
        make: Box::new(move |progress| files::prepare(&out, &[table(rows)], progress)),
    }
}

fn schema() -> SchemaRef {
    let decimal = DataType::Decimal128(12, 2);
    let columns = [
        ("hit_id", DataType::Int64),
        ("event_time", DataType::Timestamp(TimeUnit::Microsecond, None)),
        ("event_date", DataType::Date32),
        ("counter_id", DataType::Int32),
        ("client_ip", DataType::Int32),
        ("region_id", DataType::Int32),
        ("user_id", DataType::Int64),
        ("url", DataType::Utf8),
        ("url_hash", DataType::Int64),
        ("referer", DataType::Utf8),
        ("title", DataType::Utf8),
        ("search_phrase", DataType::Utf8),
        ("search_engine_id", DataType::Int16),
        ("advertiser_id", DataType::Int16),
        ("traffic_source", DataType::Int16),
        ("os", DataType::Int16),
        ("browser", DataType::Int16),
        ("is_refresh", DataType::Int16),
        ("is_link", DataType::Boolean),
        ("is_download", DataType::Boolean),
        ("is_bot", DataType::Boolean),
        ("is_mobile", DataType::Boolean),
        ("phone_model", DataType::Utf8),
        ("country", DataType::Utf8),
        ("screen_width", DataType::Int16),
        ("screen_height", DataType::Int16),
        ("window_width", DataType::Int16),
        ("window_height", DataType::Int16),
        ("load_ms", DataType::Int32),
        ("is_purchase", DataType::Boolean),
        ("price", decimal),
        ("quantity", DataType::Int32),
    ];
    let nullable = ["load_ms", "price", "quantity"];
    let field = |(name, data_type)| Field::new(name, data_type, nullable.contains(&name));
    Arc::new(Schema::new(columns.map(field).to_vec()))
}

fn table(rows: u64) -> Table {
    let schema = schema();
    let columns = Arc::clone(&schema);
    let make = move |random: &mut Random, range: Range<u64>| {
        let mut chunk = Chunk { random, rows: row_count(&range) };
        let mut arrays = chunk.identity(&range, rows)?;
        arrays.extend(chunk.texts(rows));
        arrays.extend(chunk.visit());
        arrays.extend(chunk.client());
        arrays.extend(chunk.purchase()?);
        batch(&columns, arrays)
    };
    Table { name: "hits", schema, rows, make: Box::new(make) }
}

/// Columns of a range of rows.
struct Chunk<'a> {
    random: &'a mut Random,
    rows: usize,
}

impl Chunk<'_> {
    /// A number below `most`, small ones far more often: their share grows with `power`.
    fn skewed(&mut self, most: u64, power: i32) -> i64 {
        let at = self.random.random::<f64>().powi(power) * most as f64;
        (at as i64).min(most as i64 - 1).max(0)
    }

    fn each<T>(&mut self, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.rows).map(|_| value(self)).collect()
    }

    fn small(&mut self, most: u64, power: i32) -> ArrayRef {
        let values = self.each(|chunk| chunk.skewed(most, power) as i16);
        Arc::new(Int16Array::from(values))
    }

    fn flags(&mut self, share: f64) -> ArrayRef {
        let values = self.each(|chunk| chunk.random.random_bool(share));
        Arc::new(BooleanArray::from(values))
    }

    /// Ids, time (rising with the rows, as logs have it) and place.
    fn identity(&mut self, range: &Range<u64>, rows: u64) -> Result<Vec<ArrayRef>> {
        let ids =
            Int64Array::from_iter_values(range.clone().map(|row| (row as i64 + 1).wrapping_mul(SCATTER)));
        let span = i64::from(DAYS) * MICROSECONDS_OF_A_DAY;
        let start = i64::from(FIRST_DAY) * MICROSECONDS_OF_A_DAY;
        let times: Vec<i64> = range
            .clone()
            .map(|row| {
                let even = (row as f64 / rows as f64 * span as f64) as i64;
                let moved =
                    even + self.random.random_range(-MICROSECONDS_OF_A_DAY / 4..MICROSECONDS_OF_A_DAY / 4);
                // Whole seconds, as the clocks of servers give.
                start + moved.clamp(0, span - 1) / 1_000_000 * 1_000_000
            })
            .collect();
        let days = times.iter().map(|time| (time / MICROSECONDS_OF_A_DAY) as i32);
        let counters = self.each(|chunk| FIRST_COUNTER + chunk.skewed(6_000, 3) as i32 * 17);
        let users = (rows / 6).max(1);
        let user = self.each(|chunk| chunk.skewed(users, 2));
        // A user has mostly one address and one region.
        let addresses = user.iter().map(|&user| user.wrapping_mul(SCATTER) as i32);
        let regions = user.iter().map(|&user| (user.wrapping_mul(SCATTER) >> 40 & 0xfff) as i32);
        Ok(vec![
            Arc::new(ids),
            Arc::new(TimestampMicrosecondArray::from(times.clone())),
            Arc::new(Date32Array::from_iter_values(days)),
            Arc::new(Int32Array::from(counters)),
            Arc::new(Int32Array::from_iter_values(addresses)),
            Arc::new(Int32Array::from_iter_values(regions.map(|region| region * region / 5_000))),
            Arc::new(Int64Array::from_iter_values(
                user.iter().map(|&user| FIRST_USER.wrapping_add(user.wrapping_mul(SCATTER << 1))),
            )),
        ])
    }

    /// Addresses, titles and what was searched for.
    fn texts(&mut self, rows: u64) -> Vec<ArrayRef> {
        const WORDS: [&str; 8] = ["news", "shop", "video", "forum", "maps", "music", "games", "weather"];
        let word = |at: i64| WORDS[(at % 8) as usize];
        let host = |at: i64| format!("{}{}.example", word(at / 3), at % 1_009);
        let urls = (rows / 5).max(1);
        let url = self.each(|chunk| chunk.skewed(urls, 2));
        let referer = self.each(|chunk| chunk.random.random_bool(0.6).then(|| chunk.skewed(urls, 3)));
        let phrases = (rows / 8).max(1);
        let phrase = self.each(|chunk| chunk.random.random_bool(0.13).then(|| chunk.skewed(phrases, 2)));
        let address = |at: i64| match at {
            // Some rows have no address.
            17 => String::new(),
            at => format!("https://{}/{}/{at}?from={}", host(at), word(at), at % 77),
        };
        let texts = |values: Vec<String>| -> ArrayRef { Arc::new(StringArray::from(values)) };
        vec![
            texts(url.iter().map(|&at| address(at)).collect()),
            Arc::new(Int64Array::from_iter_values(url.iter().map(|&at| (at + 1).wrapping_mul(URL_HASH)))),
            texts(
                referer
                    .iter()
                    .map(|at| at.map_or(String::new(), |at| format!("http://www.{}/{at}", host(at))))
                    .collect(),
            ),
            texts(url.iter().map(|&at| format!("{} № {}: {}", word(at), at % 9_973, word(at / 8))).collect()),
            texts(
                phrase
                    .iter()
                    .map(|at| at.map_or(String::new(), |at| format!("{} {} {at}", word(at), word(at / 8))))
                    .collect(),
            ),
        ]
    }

    /// How the visit came about.
    fn visit(&mut self) -> Vec<ArrayRef> {
        let advertisers = self.each(|chunk| match chunk.random.random_bool(0.03) {
            true => 1 + chunk.skewed(18, 2) as i16,
            false => 0,
        });
        let refreshes = self.each(|chunk| i16::from(chunk.random.random_bool(0.15)));
        vec![
            self.small(90, 6),
            Arc::new(Int16Array::from(advertisers)),
            self.small(10, 2),
            self.small(60, 3),
            self.small(80, 3),
            Arc::new(Int16Array::from(refreshes)),
            self.flags(0.1),
            self.flags(0.01),
            self.flags(0.05),
        ]
    }

    /// What the visitor's device is like.
    fn client(&mut self) -> Vec<ArrayRef> {
        const SIZES: [(i16, i16); 6] =
            [(1366, 768), (1920, 1080), (1280, 1024), (360, 800), (2560, 1440), (0, 0)];
        let models = self.each(|chunk| chunk.random.random_bool(0.1).then(|| chunk.skewed(160, 2)));
        let countries = self.each(|chunk| chunk.skewed(200, 3));
        let screens = self.each(|chunk| SIZES[chunk.skewed(6, 2) as usize]);
        let windows: Vec<(i16, i16)> = screens
            .iter()
            .map(|&(width, height)| {
                let less = self.skewed(300, 2) as i16;
                ((width - less).max(0), (height - less / 2).max(0))
            })
            .collect();
        let letter = |at: i64| char::from(b'A' + (at % 26) as u8);
        let model = |at: &Option<i64>| at.map_or(String::new(), |at| format!("Phone {at}"));
        vec![
            Arc::new(BooleanArray::from_iter(models.iter().map(|model| Some(model.is_some())))),
            Arc::new(StringArray::from_iter_values(models.iter().map(model))),
            Arc::new(StringArray::from_iter_values(
                countries.iter().map(|&at| [letter(at / 26), letter(at)].iter().collect::<String>()),
            )),
            Arc::new(Int16Array::from_iter_values(screens.iter().map(|size| size.0))),
            Arc::new(Int16Array::from_iter_values(screens.iter().map(|size| size.1))),
            Arc::new(Int16Array::from_iter_values(windows.iter().map(|size| size.0))),
            Arc::new(Int16Array::from_iter_values(windows.iter().map(|size| size.1))),
        ]
    }

    /// How long the page took, and what was bought: mostly nothing.
    fn purchase(&mut self) -> Result<Vec<ArrayRef>> {
        let load = self.each(|chunk| chunk.random.random_bool(0.9).then(|| chunk.skewed(30_000, 4) as i32));
        let bought = self.each(|chunk| chunk.random.random_bool(0.02));
        let mut prices = vec![];
        let mut quantities = vec![];
        for &bought in &bought {
            prices.push(bought.then(|| i128::from(99 + self.skewed(2_000_000, 4))));
            quantities.push(bought.then(|| 1 + self.skewed(12, 3) as i32));
        }
        Ok(vec![
            Arc::new(Int32Array::from(load)),
            Arc::new(BooleanArray::from(bought)),
            Arc::new(Decimal128Array::from(prices).with_precision_and_scale(12, 2)?),
            Arc::new(Int32Array::from(quantities)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::AsArray;
    use datafusion::arrow::datatypes::{Int32Type, Int64Type};
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn what_the_queries_ask_for_is_there() {
        let table = table(10_000);
        let rows = (table.make)(&mut Random::seed_from_u64(1), 0..10_000).unwrap();
        let count = |found: &dyn Fn(usize) -> bool| (0..rows.num_rows()).filter(|&row| found(row)).count();
        let column = |name: &str| Arc::clone(rows.column_by_name(name).unwrap());
        let (counter, user, hash) = (column("counter_id"), column("user_id"), column("url_hash"));
        assert!(count(&|row| counter.as_primitive::<Int32Type>().value(row) == FIRST_COUNTER) > 200);
        assert!(count(&|row| user.as_primitive::<Int64Type>().value(row) == FIRST_USER) > 50);
        assert!(count(&|row| hash.as_primitive::<Int64Type>().value(row) == URL_HASH) > 50);
        let texts = include_str!("clickbench_like.sql");
        for value in [FIRST_USER, URL_HASH, i64::from(FIRST_COUNTER)] {
            assert!(texts.contains(&format!("= {value}")), "{value}");
        }
        let url = column("url");
        let url = url.as_string::<i32>();
        assert!(count(&|row| url.value(row).contains("shop")) > 100);
        assert_eq!(rows.num_columns(), 32);
    }
}
