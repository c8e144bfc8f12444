//! Steps that load drivers run in a process of their own: a driver that crashes or hangs is then a finding, and not the end
//! of the doctor. A step prints one message a line.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::finding::{Check, Chosen, Finding};

/// Name of the hidden subcommand.
pub const COMMAND: &str = "doctor-step";

/// For what a step that is gone, or was killed, leaves to be read.
const GRACE: Duration = Duration::from_secs(1);

/// What a step says while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// It begins with this; when nothing follows, it broke here.
    Begin(Check),
    /// It found this.
    Found(Finding),
    /// It examines this adapter.
    Chosen(Chosen),
    /// A library was loaded.
    Loaded(Library),
    /// A library was not loaded; the system's words.
    NotLoaded(String),
}

/// A library that was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Library {
    /// Where the system found it.
    pub path: Option<String>,
    /// It has the functions that such a library must have.
    pub complete: bool,
    /// It offers to create a Vulkan instance.
    pub starts: bool,
    /// What it looked for in vain when it did not start.
    pub lost: Vec<String>,
    /// The Vulkan version that a loader offers.
    pub version: Option<[u32; 3]>,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Done,
    /// It failed, crashed, hung or did not start; in words.
    Broke(String),
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What it said.
    pub messages: Vec<Message>,
    /// How it ended.
    pub ended: Ended,
    /// Lines that it, a driver or the system printed as errors.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "read for what Linux's linker prints"))]
    pub errors: Vec<String>,
}

/// Sends a message to the process that asked.
pub fn tell(message: &Message) -> io::Result<()> {
    let line = serde_json::to_string(message)?;
    let mut out = io::stdout().lock();
    // On a line of its own, whatever a driver printed before.
    writeln!(out, "\n{line}")?;
    out.flush()
}

/// Runs a step of this program and waits until it ends, at most for `patience`.
pub fn run<A: AsRef<OsStr>>(step: &[A], patience: Duration) -> Outcome {
    run_with(step, &[], patience)
}

/// [`run`] with more environment variables.
pub fn run_with<A: AsRef<OsStr>>(step: &[A], variables: &[(&str, &str)], patience: Duration) -> Outcome {
    let mut arguments = vec![OsString::from(COMMAND)];
    arguments.extend(step.iter().map(|argument| argument.as_ref().to_owned()));
    match std::env::current_exe() {
        Ok(program) => run_program(&program, &arguments, variables, patience),
        Err(error) => broke(vec![], format!("this program was not found: {error}")),
    }
}

fn broke(messages: Vec<Message>, why: String) -> Outcome {
    Outcome { messages, ended: Ended::Broke(why), errors: vec![] }
}

fn run_program(
    program: impl AsRef<OsStr>,
    arguments: &[OsString],
    variables: &[(&str, &str)],
    patience: Duration,
) -> Outcome {
    let mut command = Command::new(program);
    // A group of its own, so that helpers which a driver started can be stopped with it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let started = command
        .args(arguments)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => return broke(vec![], format!("the step did not start: {error}")),
    };
    let messages = child.stdout.take().map(lines);
    let errors = child.stderr.take().map(lines);
    let ended = wait(&mut child, patience);
    let until = Instant::now() + GRACE;
    let messages: Vec<Message> = collect(messages, until).filter_map(|line| read(&line)).collect();
    let errors: Vec<String> = collect(errors, until).filter(|line| !line.trim().is_empty()).collect();
    let ended = match ended {
        Ok(Some(status)) if status.success() => Ended::Done,
        Ok(Some(status)) => {
            let words =
                errors.last().map_or(String::new(), |line| format!("; its last words: {}", line.trim()));
            Ended::Broke(format!("{}{words}", describe(status)))
        }
        Ok(None) => Ended::Broke(format!("hung, and was given up after {} s", patience.as_secs())),
        Err(error) => Ended::Broke(format!("could not be waited for: {error}")),
    };
    Outcome { messages, ended, errors }
}

/// What a pipe gave until it ended, or until a moment: a process that the step left behind may hold its other end open.
fn collect(lines: Option<Receiver<String>>, until: Instant) -> impl Iterator<Item = String> {
    lines.into_iter().flat_map(move |lines| {
        std::iter::from_fn(move || lines.recv_timeout(until.saturating_duration_since(Instant::now())).ok())
    })
}

fn read(line: &str) -> Option<Message> {
    serde_json::from_str(line).ok()
}

/// Lines of a pipe, read by a thread so that the other end never blocks.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = vec![];
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    receiver
}

/// The status; `None` when patience ran out. The process is killed then, but not waited for without end: in a system call that
/// hangs, nothing reaches it.
fn wait(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            let until = Instant::now() + GRACE;
            while Instant::now() < until && child.try_wait()?.is_none() {
                thread::sleep(Duration::from_millis(10));
            }
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(unix)]
fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    let names =
        [(4, "SIGILL"), (6, "SIGABRT"), (7, "SIGBUS"), (8, "SIGFPE"), (9, "SIGKILL"), (11, "SIGSEGV")];
    match (status.signal(), status.code()) {
        (Some(signal), _) => {
            let name = names.iter().find(|(number, _)| *number == signal).map_or("", |(_, name)| name);
            format!("crashed with signal {signal} {name}").trim_end().to_owned()
        }
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended without a status".to_owned(),
    }
}

#[cfg(not(unix))]
fn describe(status: ExitStatus) -> String {
    format!("ended with {status}")
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Outcome {
        run_program("/bin/sh", &["-c".into(), script.into()], &[("WORD", "at last")], patience)
    }

    #[test]
    fn messages_come_through_the_noise() {
        let message = Message::Begin(Check::Query);
        let line = serde_json::to_string(&message).unwrap();
        let outcome = shell(&format!("echo a driver speaks; echo '{line}'; echo"), Duration::from_secs(10));
        assert_eq!(outcome, Outcome { messages: vec![message], ended: Ended::Done, errors: vec![] });
    }

    #[test]
    fn what_a_step_leaves_behind_is_not_waited_for() {
        let started = Instant::now();
        let outcome = shell("sleep 30 & echo words >&2; exit 0", Duration::from_secs(20));
        assert_eq!((outcome.ended, outcome.errors), (Ended::Done, vec!["words\n".to_owned()]));
        assert!(started.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn crashes_and_hangs_are_told() {
        let why = |outcome: Outcome| match outcome.ended {
            Ended::Broke(why) => why,
            Ended::Done => panic!("the step must break"),
        };
        let patience = Duration::from_secs(10);
        assert_eq!(why(shell("kill -SEGV $$", patience)), "crashed with signal 11 SIGSEGV");
        let failed = why(shell("echo first >&2; echo $WORD >&2; exit 7", patience));
        assert_eq!(failed, "ended with exit code 7; its last words: at last");
        let hung = why(shell("exec sleep 60", Duration::from_millis(200)));
        assert_eq!(hung, "hung, and was given up after 0 s");
        let missing = run_program("/nonexistent/program", &[], &[], patience);
        assert!(why(missing).starts_with("the step did not start"));
    }
}
