//! The interactive shell, through a terminal.

use rexpect::process::WaitStatus;
use rexpect::session::{PtySession, spawn_command};

use super::*;

/// Longer than anything takes; a test that waits this long has failed.
const PATIENCE_MS: u64 = 60_000;
const UP: &str = "\x1b[A";

fn open(place: &Place, arguments: &[&str]) -> TestResult<PtySession> {
    let mut command = place.command(arguments);
    command.env("TERM", "xterm").stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    let mut session = spawn_command(command, Some(PATIENCE_MS))?;
    prompt(&mut session)?;
    Ok(session)
}

/// Waits until the shell asks for a statement: its hint follows the prompt.
fn prompt(session: &mut PtySession) -> TestResult<String> {
    Ok(session.exp_string("\\q to quit")?)
}

/// Enters a line and gives what is printed up to the next prompt.
fn enter(session: &mut PtySession, line: &str) -> TestResult<String> {
    type_in(session, &format!("{line}\r"))?;
    prompt(session)
}

fn type_in(session: &mut PtySession, keys: &str) -> TestResult {
    session.send(keys)?;
    Ok(session.flush()?)
}

fn exit_code(session: &PtySession) -> TestResult<i32> {
    match session.process().wait()? {
        WaitStatus::Exited(_, code) => Ok(code),
        other => Err(format!("{other:?}").into()),
    }
}

#[test]
fn statements_and_meta_commands_are_answered() -> TestResult {
    let place = Place::new()?;
    let mut shell = open(&place, &[])?;
    let shown = enter(&mut shell, "SELECT 40 + 2 AS answer;")?;
    assert!(
        shown.contains("| answer |") && shown.contains("| 42     |") && shown.contains("1 row(s)"),
        "{shown}"
    );
    type_in(&mut shell, "SELECT\r")?;
    let shown = enter(&mut shell, "'two' || ' lines' AS t;")?;
    assert!(shown.contains("| two lines |"), "{shown}");
    let shown = enter(&mut shell, "SELECT nope;")?;
    assert!(shown.contains("No field named nope"), "{shown}");
    let shown = enter(&mut shell, "\\?")?;
    assert!(shown.contains("list tables") && shown.contains("quit"), "{shown}");
    let shown = enter(&mut shell, "\\pset format csv")?;
    assert!(shown.contains("Output format is Csv."), "{shown}");
    let shown = enter(&mut shell, "SHOW gpu.placement;")?;
    assert!(shown.contains("gpu.placement,auto"), "{shown}");
    let shown = enter(&mut shell, "\\zz")?;
    assert!(shown.contains("not a valid command"), "{shown}");
    type_in(&mut shell, "\\q\r")?;
    shell.exp_eof()?;
    assert_eq!(exit_code(&shell)?, 0);
    Ok(())
}

#[test]
fn the_history_is_kept_in_the_working_directory() -> TestResult {
    let place = Place::new()?;
    let mut shell = open(&place, &["-q", "--gpu", "off"])?;
    enter(&mut shell, "SELECT 'remembered' AS word;")?;
    type_in(&mut shell, "\\q\r")?;
    shell.exp_eof()?;
    let history = fs::read_to_string(place.path(".history"))?;
    assert!(history.contains("SELECT 'remembered' AS word;"), "{history}");
    assert!(!place.home().join(".history").exists());

    let mut shell = open(&place, &["-q"])?;
    // The last line was \q.
    type_in(&mut shell, UP)?;
    type_in(&mut shell, UP)?;
    let shown = enter(&mut shell, "")?;
    assert!(shown.contains("| remembered |"), "{shown}");
    // Ctrl-D.
    type_in(&mut shell, "\x04")?;
    shell.exp_eof()?;
    assert_eq!(exit_code(&shell)?, 0);
    Ok(())
}

#[test]
fn ctrl_c_drops_the_line_or_stops_the_query() -> TestResult {
    let place = Place::new()?;
    let mut shell = open(&place, &["--gpu", "force"])?;
    type_in(&mut shell, "SELECT 'never mind")?;
    shell.send_control('c')?;
    let shown = prompt(&mut shell)?;
    assert!(shown.contains("^C"), "{shown}");

    let endless = "SELECT count(*) FROM generate_series(1, 1000000000000) WHERE value % 7 = 3;";
    type_in(&mut shell, &format!("{endless}\r"))?;
    // The shell takes the signal once the query runs; before that the terminal's driver may still be in line mode.
    std::thread::sleep(std::time::Duration::from_secs(2));
    shell.send_control('c')?;
    let shown = prompt(&mut shell)?;
    assert!(shown.contains("^C"), "{shown}");
    let shown = enter(&mut shell, "SELECT 6 * 7 AS answer;")?;
    assert!(shown.contains("| 42     |"), "{shown}");
    type_in(&mut shell, "\x04")?;
    shell.exp_eof()?;
    assert_eq!(exit_code(&shell)?, 0);
    Ok(())
}

#[test]
fn warnings_are_readable_between_the_answers() -> TestResult {
    let place = Place::new()?;
    six_numbers(&place)?;
    let mut shell = open(&place, &["--gpu", "force"])?;
    enter(&mut shell, "SET gpu.memory_limit = '1KiB';")?;
    let shown = enter(&mut shell, "SELECT sum(x * 2) AS s FROM 't' WHERE x > 1;")?;
    assert!(shown.contains("fell back to the CPU") && shown.contains("| 40 |"), "{shown}");
    type_in(&mut shell, "\\q\r")?;
    shell.exp_eof()?;
    Ok(())
}

#[test]
fn a_history_that_cannot_be_written_is_told() -> TestResult {
    let place = Place::new()?;
    // A folder of that name can't be read as a history, nor written.
    fs::create_dir(place.path(".history"))?;
    let mut shell = open(&place, &[])?;
    enter(&mut shell, "SELECT 1;")?;
    type_in(&mut shell, "\\q\r")?;
    let shown = shell.exp_eof()?;
    assert!(shown.contains("Error: the history could not be kept in .history"), "{shown}");
    assert_eq!(exit_code(&shell)?, 1);
    Ok(())
}
