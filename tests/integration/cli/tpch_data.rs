//! `tpch-data`.

use std::time::{Duration, Instant};

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use tpchgen::generators::{CustomerGenerator, LineItemGenerator, NationGenerator};
use tpchgen_arrow::{CustomerArrow, LineItemArrow, NationArrow};

use super::*;

/// Parquet files of a table, in order.
fn parts(place: &Place, table: &str) -> TestResult<Vec<PathBuf>> {
    files(&place.path("d").join(table))
}

fn metadata(path: &Path) -> TestResult<ParquetMetaData> {
    Ok(SerializedFileReader::new(fs::File::open(path)?)?.metadata().clone())
}

/// Rows of the files as text.
fn text(paths: &[PathBuf]) -> TestResult<String> {
    let mut batches = vec![];
    for path in paths {
        let reader = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(path)?)?.build()?;
        batches.extend(reader.collect::<Result<Vec<RecordBatch>, _>>()?);
    }
    Ok(pretty_format_batches(&batches)?.to_string())
}

#[test]
fn files_hold_the_generators_rows_in_order() -> TestResult {
    let place = Place::new()?;
    let arguments = "tpch-data --scale 0.001 --out d --parts 3 --row-group-rows 1000 --compression zstd \
        --tables lineitem,customer,nation";
    let ran = place.run(&arguments.split_whitespace().collect::<Vec<_>>())?.succeeded()?;
    assert_eq!(ran.stderr, "", "no progress bar where there is no terminal");
    for line in ["customer 3 150", "lineitem 3 6,005", "nation 1 25", "all 7 6,180"] {
        let shown = |shown: &str| shown.split_whitespace().collect::<Vec<_>>().join(" ").starts_with(line);
        assert!(ran.stdout.lines().any(shown), "no {line} in\n{}", ran.stdout);
    }

    let whole: [(&str, Vec<RecordBatch>); 3] = [
        ("lineitem", LineItemArrow::new(LineItemGenerator::new(0.001, 1, 1)).collect::<Result<_, _>>()?),
        ("customer", CustomerArrow::new(CustomerGenerator::new(0.001, 1, 1)).collect::<Result<_, _>>()?),
        ("nation", NationArrow::new(NationGenerator::new(0.001, 1, 1)).collect::<Result<_, _>>()?),
    ];
    for (table, rows) in whole {
        assert!(
            text(&parts(&place, table)?)? == pretty_format_batches(&rows)?.to_string(),
            "{table} differs"
        );
    }
    let lineitem = parts(&place, "lineitem")?;
    assert_eq!(lineitem.len(), 3);
    for path in lineitem {
        let metadata = metadata(&path)?;
        assert_eq!(metadata.num_row_groups(), 2, "{}", path.display());
        assert!(matches!(metadata.row_group(0).column(0).compression(), Compression::ZSTD(_)));
    }
    assert_eq!(parts(&place, "nation")?.len(), 1);
    Ok(())
}

#[test]
fn a_second_run_keeps_or_refuses_what_is_there() -> TestResult {
    let place = Place::new()?;
    let small = |more: &[&str]| {
        place.run(&[&["tpch-data", "-s", "0.001", "-o", "d", "--tables", "supplier"], more].concat())
    };
    small(&[])?.succeeded()?;
    let made = parts(&place, "supplier")?;
    assert_eq!(made.len(), 4, "several files by default");
    let bytes = made.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
    let times = made.iter().map(|path| fs::metadata(path)?.modified()).collect::<Result<Vec<_>, _>>()?;

    // What a killed run leaves is removed, what it lacks is made, the rest stays.
    place.write("d/supplier/part-3.12345.unfinished", "half of it")?;
    fs::remove_file(&made[1])?;
    let ran = small(&[])?.succeeded()?;
    assert!(ran.stdout.contains("3 files that were there already"), "{}", ran.stdout);
    assert_eq!(parts(&place, "supplier")?, made);
    assert!(
        made.iter().map(fs::read).collect::<Result<Vec<_>, _>>()? == bytes,
        "the same flags give the same bytes"
    );
    assert_eq!(fs::metadata(&made[0])?.modified()?, times[0]);
    let ran = small(&[])?.succeeded()?;
    assert!(ran.stdout.contains("already"), "{}", ran.stdout);

    for other in [&["--parts", "2"][..], &["--compression", "none"]] {
        let ran = small(other)?;
        assert!(ran.failed()?.contains("--overwrite"), "{}", ran.stderr);
        assert_eq!(parts(&place, "supplier")?, made, "{other:?} touches nothing");
    }
    small(&["--parts", "2", "--compression", "none", "--overwrite"])?.succeeded()?;
    let replaced = parts(&place, "supplier")?;
    assert_eq!(replaced.len(), 2);
    let rows: i64 = replaced
        .iter()
        .map(|path| metadata(path).map(|m| m.file_metadata().num_rows()))
        .sum::<TestResult<_>>()?;
    assert_eq!(rows, 10);
    Ok(())
}

#[test]
fn what_is_not_ours_is_left_alone() -> TestResult {
    let place = Place::new()?;
    fs::create_dir_all(place.path("d/region"))?;
    place.write("d/region/mine.parquet", "")?;
    let arguments = ["tpch-data", "-s", "0.001", "-o", "d", "--tables", "region"];
    for more in [&[][..], &["--overwrite"]] {
        let ran = place.run(&[&arguments[..], more].concat())?;
        assert!(ran.failed()?.contains("mine.parquet"), "{}", ran.stderr);
    }
    fs::rename(place.path("d/region/mine.parquet"), place.path("d/region/part-1.parquet"))?;
    let ran = place.run(&arguments)?;
    assert!(ran.failed()?.contains("is there already"), "{}", ran.stderr);
    assert_eq!(fs::read(place.path("d/region/part-1.parquet"))?, b"");
    Ok(())
}

#[cfg(unix)]
#[test]
fn two_runs_do_not_write_to_one_folder() -> TestResult {
    let place = Place::new()?;
    fs::create_dir(place.path("d"))?;
    let folder = fs::File::open(place.path("d"))?;
    folder.lock()?;
    let ran = place.run(&["tpch-data", "-s", "0.001", "-o", "d"])?;
    assert!(ran.failed()?.contains("another tpch-data"), "{}", ran.stderr);
    Ok(())
}

#[test]
fn wrong_flags_and_folders_are_refused() -> TestResult {
    let place = Place::new()?;
    place.write("file", "")?;
    let flags = [
        "--scale 0",
        "--scale -1",
        "--scale nan",
        "--scale 1001",
        "--scale",
        "--scale 1 --parts 0",
        "--scale 1 --parts x",
        "--scale 1 --tables lineitems",
        "--scale 1 --compression lzo",
        "--scale 1 --row-group-rows 1",
        "--parts 2",
    ];
    for flags in flags {
        let arguments: Vec<_> = ["tpch-data", "--out", "d"].into_iter().chain(flags.split(' ')).collect();
        let ran = place.run(&arguments)?;
        assert_eq!(ran.code, Some(2), "{flags}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error: "), "{flags}: {}", ran.stderr);
    }
    assert!(!place.path("d").exists());
    for out in ["file", "file/d"] {
        let ran = place.run(&["tpch-data", "-s", "0.001", "-o", out])?;
        assert!(ran.failed()?.contains(out), "{}", ran.stderr);
    }
    fs::create_dir(place.path("d"))?;
    place.write("d/tpch-data.json", "{\"nation\": 1}")?;
    let ran = place.run(&["tpch-data", "-s", "0.001", "-o", "d"])?;
    assert!(ran.failed()?.contains("tpch-data.json"), "{}", ran.stderr);
    Ok(())
}

/// A limit on the size of files fails like a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_takes_no_more_leaves_no_files() -> TestResult {
    let place = Place::new()?;
    let script = "trap '' XFSZ; ulimit -f 16; exec \"$0\" tpch-data -s 0.01 -o d --tables lineitem";
    let mut command = Command::new("bash");
    let ran = Ran::new(
        &command
            .args(["-c", script, env!("CARGO_BIN_EXE_datafusion-wgpu")])
            .current_dir(place.work())
            .output()?,
    );
    let line = ran.failed()?;
    assert!(line.contains("cannot write 'd/lineitem/part-") && line.contains("too large"), "{line}");
    assert_eq!(parts(&place, "lineitem")?, Vec::<PathBuf>::new());
    Ok(())
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_whole_files_and_can_be_continued() -> TestResult {
    let place = Place::new()?;
    let arguments: Vec<_> =
        "tpch-data -s 0.02 -o d --parts 30 --row-group-rows 1000 --tables lineitem,nation"
            .split(' ')
            .collect();
    let mut child = place.command(&arguments).spawn()?;
    let folder = place.path("d/lineitem");
    let start = Instant::now();
    // Not before it has begun to write, and long before it is done.
    while !folder.exists() || files(&folder)?.len() < 3 {
        assert!(
            start.elapsed() < Duration::from_secs(120) && child.try_wait()?.is_none(),
            "it never got that far"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let ran = Ran::new(&child.wait_with_output()?);
    assert_eq!(ran.code, Some(130), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.starts_with("Interrupted"), "{}", ran.stderr);

    let kept = parts(&place, "lineitem")?;
    assert!(kept.len() < 30, "it was interrupted");
    for path in &kept {
        assert!(path.extension().is_some_and(|e| e == "parquet"), "{} is left", path.display());
        assert_eq!(metadata(path)?.num_row_groups(), 4, "{}", path.display());
    }
    let ran = place.run(&arguments)?.succeeded()?;
    assert!(kept.is_empty() || ran.stdout.contains(&format!("{} files", kept.len())), "{}", ran.stdout);
    let all = parts(&place, "lineitem")?;
    assert_eq!(all.len(), 30);
    let rows = all
        .iter()
        .map(|path| metadata(path).map(|m| m.file_metadata().num_rows()))
        .sum::<TestResult<i64>>()?;
    assert_eq!(rows, LineItemGenerator::new(0.02, 1, 1).iter().count() as i64);
    Ok(())
}
