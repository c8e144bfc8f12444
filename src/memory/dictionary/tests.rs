use arrow::array::{
    BinaryArray, BinaryViewArray, DictionaryArray, FixedSizeBinaryArray, LargeStringArray, StringArray,
    StringViewArray,
};
use arrow::datatypes::{Int8Type, Int32Type};

use super::*;

/// Rows that repeat, with NULLs, the empty string and values longer than a view holds.
fn words(rows: usize, distinct: usize) -> Vec<Option<String>> {
    let word = |k: usize| match k {
        0 => String::new(),
        k if k % 7 == 0 => format!("a value that no view holds inline, number {k}"),
        k => format!("w{k}"),
    };
    (0..rows).map(|row| (row % 11 != 3).then(|| word(row * 31 % distinct))).collect()
}

/// The rows that codes and values stand for.
fn decoded(dictionary: &Dictionary) -> ArrayRef {
    let chunks: Vec<&dyn Array> = dictionary.values().iter().map(|chunk| chunk.as_ref()).collect();
    let values = arrow::compute::concat(&chunks).unwrap();
    let codes: Vec<&dyn Array> = dictionary.codes().iter().map(|codes| codes as &dyn Array).collect();
    let codes = arrow::compute::concat(&codes).unwrap();
    arrow::compute::take(&values, &codes, None).unwrap()
}

fn concatenated(arrays: &[ArrayRef]) -> ArrayRef {
    arrow::compute::concat(&arrays.iter().map(|array| array.as_ref()).collect::<Vec<_>>()).unwrap()
}

/// Encodes slices at odd offsets, and holds codes and values against the rows.
async fn check(array: ArrayRef, distinct: usize) {
    let rows = array.len();
    let mut cuts = [0, 3, 3, rows / 5 + 1, rows / 2, rows].map(|cut| cut.min(rows));
    cuts.sort_unstable();
    let arrays: Vec<ArrayRef> = cuts.windows(2).map(|cut| array.slice(cut[0], cut[1] - cut[0])).collect();
    let dictionary = encode(arrays.clone()).await.unwrap();
    let context = format!("{} of {rows} rows", array.data_type());
    assert_eq!(dictionary.codes().len(), arrays.len());
    for (codes, array) in dictionary.codes().iter().zip(&arrays) {
        assert_eq!((codes.len(), codes.null_count()), (array.len(), 0));
        let nulls = array.logical_nulls();
        for row in 0..array.len() {
            let null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            assert_eq!(codes.value(row) == 0, null, "{context} {row}");
        }
    }
    let values = dictionary.values();
    assert!(values[0].len() == 1 && values[0].logical_nulls().is_some_and(|nulls| nulls.null_count() == 1));
    assert_eq!(values.iter().map(|chunk| chunk.len()).sum::<usize>(), distinct + 1, "{context}");
    assert!(values.iter().all(|chunk| chunk.data_type() == array.data_type()), "{context}");
    // Arrow's dictionaries compare by what they stand for.
    let plain = |array: &ArrayRef| match array.data_type() {
        DataType::Dictionary(_, values) => cast(array, values).unwrap(),
        _ => Arc::clone(array),
    };
    let expected = plain(&concatenated(&arrays));
    let of: Vec<ArrayRef> = dictionary.values().iter().map(&plain).collect();
    let plain_dictionary = Dictionary { codes: dictionary.codes.clone(), values: of.into() };
    assert_eq!(&decoded(&plain_dictionary), &expected, "{context}");
    if rows < 100 {
        return;
    }
    // Some of the rows keep their codes.
    let part = plain_dictionary.slice(&[(2, 1..arrays[2].len()), (3, 0..7)]);
    assert_eq!(part.codes().len(), 2);
    let sliced = expected.slice(4, arrays[2].len() - 1 + 7);
    assert_eq!(&decoded(&part), &sliced, "{context}");
}

#[tokio::test]
async fn every_type_is_encoded() {
    for (rows, distinct) in [(900, 40), (12, 40), (0, 1)] {
        let words = words(rows, distinct);
        let met = words.iter().flatten().collect::<std::collections::BTreeSet<_>>().len();
        check(Arc::new(StringArray::from(words.clone())), met).await;
        check(Arc::new(LargeStringArray::from(words.clone())), met).await;
        check(Arc::new(StringViewArray::from(words.clone())), met).await;
        let bytes = || words.iter().map(|word| word.as_ref().map(String::as_bytes));
        check(Arc::new(BinaryArray::from_iter(bytes())), met).await;
        check(Arc::new(BinaryViewArray::from_iter(bytes())), met).await;
        let dictionary: DictionaryArray<Int32Type> = words.iter().map(Option::as_deref).collect();
        check(Arc::new(dictionary.clone()), met).await;
        for values in [DataType::LargeUtf8, DataType::Utf8View] {
            let to = DataType::Dictionary(Box::new(DataType::UInt16), Box::new(values));
            assert!(is_encodable(&to));
            check(cast(&dictionary, &to).unwrap(), met).await;
        }
    }
    let fixed = [Some(b"abc"), None, Some(b"xyz"), Some(b"abc")];
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed.into_iter(), 3).unwrap();
    check(Arc::new(fixed), 2).await;
    assert!(!is_encodable(&DataType::Int32) && !is_encodable(&DataType::new_list(DataType::Utf8, true)));
}

#[tokio::test]
async fn many_rows_and_values_go_through_several_tasks_and_chunks() {
    let rows = 3 * TASK_ROWS;
    let strings: Vec<String> = (0..rows).map(|row| format!("v{}", row * 7 % 20_011)).collect();
    let array: ArrayRef = Arc::new(StringViewArray::from_iter_values(&strings));
    let arrays: Vec<ArrayRef> =
        (0..rows).step_by(8192).map(|at| array.slice(at, 8192.min(rows - at))).collect();
    let dictionary = encode(arrays.clone()).await.unwrap();
    assert_eq!(dictionary.values().iter().map(|chunk| chunk.len()).sum::<usize>(), 20_012);
    assert!(dictionary.values().iter().all(|chunk| chunk.len() <= CHUNK_VALUES));
    assert_eq!(&decoded(&dictionary), &array);
    let (distinct, seen) = sample(&arrays, 10_000).unwrap();
    assert_eq!((distinct, seen), (10_000, 10_000));
}

#[tokio::test]
async fn batches_with_different_dictionaries_share_codes() {
    // The same keys mean other values in each batch, values repeat, and some are NULL or have no row.
    let batch = |keys: Vec<Option<i8>>, values: Vec<Option<&str>>| {
        let values = Arc::new(StringArray::from(values));
        Arc::new(DictionaryArray::<Int8Type>::new(keys.into(), values)) as ArrayRef
    };
    let arrays = vec![
        batch(vec![Some(0), Some(1), None, Some(2)], vec![Some("x"), Some("y"), None, Some("unmet")]),
        batch(vec![Some(0), Some(1), Some(2), Some(0)], vec![Some("y"), Some("y"), Some("z")]),
    ];
    let dictionary = encode(arrays).await.unwrap();
    let codes: Vec<Vec<u32>> = dictionary.codes().iter().map(|codes| codes.values().to_vec()).collect();
    assert_eq!(codes, [vec![1, 2, 0, 0], vec![2, 2, 3, 2]]);
    assert_eq!(dictionary.values().iter().map(|chunk| chunk.len()).sum::<usize>(), 4);
}

#[tokio::test]
async fn more_values_than_the_keys_of_a_dictionary_can_tell_apart() {
    // Each batch has few values, all batches together more than 127.
    let batch = |first: usize| {
        let words: Vec<String> = (first..first + 100).map(|k| format!("w{k}")).collect();
        let dictionary: DictionaryArray<Int8Type> = words.iter().map(|word| Some(word.as_str())).collect();
        Arc::new(dictionary) as ArrayRef
    };
    let dictionary = encode(vec![batch(0), batch(90), batch(200)]).await.unwrap();
    assert_eq!(dictionary.values().iter().map(|chunk| chunk.len()).sum::<usize>(), 291);
    assert!(dictionary.values().iter().all(|chunk| chunk.len() <= 127));
}
