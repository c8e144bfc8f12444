//! `doctor`: what stands between this machine and queries on its GPU, from the Vulkan loader up to a query, and what to do
//! about it.

mod child;
mod device;
mod finding;
#[cfg(target_os = "linux")]
mod linux;
mod query;

use std::process::ExitCode;
use std::time::Duration;

use datafusion::error::Result;

use crate::error::problem;
use crate::output::print;
use child::{Ended, Message, Outcome};
use finding::{Check, Chosen, Finding, Report, Status};

/// The longest that opening a device, probing it and the query may take; a cold shader compiler takes seconds.
const DEVICE_PATIENCE: Duration = Duration::from_secs(60);

/// Flags of `doctor`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Exit codes:\n  \
    0  a GPU works; warnings may say what else is wrong\n  \
    1  no adapter can be used, or it gives wrong answers\n  \
    2  wrong flags\n  \
    3  an adapter works, but it is a software adapter, which runs on the CPU")]
#[group(id = "doctor_flags")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The adapter to examine: its number or a part of its name; the one that queries would use by default
    #[arg(long, value_name = "ADAPTER")]
    adapter: Option<String>,
}

/// A step in a process of its own.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "doctor_step")]
pub struct StepArgs {
    #[command(subcommand)]
    step: Step,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Step {
    /// Loads the Vulkan loader
    #[cfg(target_os = "linux")]
    Loader,
    /// Loads a driver's library
    #[cfg(target_os = "linux")]
    Driver { library: std::ffi::OsString },
    /// Examines an adapter
    Device {
        #[arg(long, default_value = "")]
        adapter: String,
    },
}

/// Examines the machine.
pub async fn run(args: Args) -> Result<ExitCode> {
    let adapter = args.adapter.unwrap_or_default();
    let report = tokio::task::spawn_blocking(move || examine(&adapter))
        .await
        .map_err(|error| problem(format!("the examination failed: {error}")))?;
    if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| problem(error.to_string()))?;
        print(&format!("{text}\n"))?;
    } else {
        print(&report.text())?;
    }
    Ok(ExitCode::from(report.verdict.exit_code()))
}

/// Runs a step, which tells the process that asked for it.
pub async fn run_step(args: StepArgs) -> Result<ExitCode> {
    match args.step {
        #[cfg(target_os = "linux")]
        Step::Loader => linux::library::load_loader()?,
        #[cfg(target_os = "linux")]
        Step::Driver { library } => linux::library::load_driver(&library)?,
        Step::Device { adapter } => device::examine(adapter).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn examine(adapter: &str) -> Report {
    #[cfg(target_os = "linux")]
    let mut findings = linux::examine();
    #[cfg(not(target_os = "linux"))]
    let mut findings = vec![];
    let step = ["device", "--adapter", adapter];
    let (found, chosen) = device_findings(child::run(&step, DEVICE_PATIENCE));
    findings.extend(found);
    explain_absence(&mut findings);
    Report::new(findings, chosen)
}

/// What the step that examines an adapter found; where it broke, that is the last finding.
fn device_findings(outcome: Outcome) -> (Vec<Finding>, Option<Chosen>) {
    let (mut findings, mut chosen, mut begun) = (vec![], None, Check::Adapters);
    for message in outcome.messages {
        match message {
            Message::Begin(check) => begun = check,
            Message::Found(finding) => findings.push(finding),
            Message::Chosen(adapter) => chosen = Some(adapter),
            Message::Loaded(_) | Message::NotLoaded(_) => {}
        }
    }
    if let Ended::Broke(why) = outcome.ended {
        let broken = match begun {
            Check::Adapters => Finding::problem(begun, format!("looking for adapters {why}")).advise(
                "a driver is broken: update or reinstall it, or hide it: VK_DRIVER_FILES=MANIFEST names the drivers to use",
            ),
            check => Finding::problem(check, format!("the driver failed: this step {why}"))
                .advise("update the driver, or use another adapter with --adapter"),
        };
        findings.push(broken);
    }
    (findings, chosen)
}

/// Gives the finding that there is no adapter the reason that was found below it, where the advice is.
fn explain_absence(findings: &mut [Finding]) {
    let below = |finding: &&Finding| finding.check < Check::Adapters;
    let problems: Vec<&Finding> =
        findings.iter().filter(below).filter(|f| f.status == Status::Problem).collect();
    let hidden = findings.iter().find(|f| f.check == Check::DriverManifests && f.status == Status::Warning);
    let cause = problems.first().copied().or(hidden).map(|cause| match problems.len() {
        0 | 1 => cause.detail.clone(),
        several => format!("{} (and {} more above)", cause.detail, several - 1),
    });
    let none =
        |f: &&mut Finding| f.check == Check::Adapters && f.status == Status::Problem && f.advice.is_none();
    let Some(absence) = findings.iter_mut().find(none) else { return };
    match cause {
        Some(cause) => absence.detail = format!("{}, since {cause}", absence.detail),
        None => {
            absence.detail = format!("{}: the drivers, if any, find no GPU", absence.detail);
            absence.advice = Some(device::NO_ADAPTER.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_breaks_is_the_last_finding() {
        let good = Finding::ok(Check::Adapters, "0: Test GPU");
        let chosen = Chosen { index: 0, name: "Test GPU".to_owned(), software: false };
        let messages = vec![
            Message::Begin(Check::Adapters),
            Message::Found(good.clone()),
            Message::Chosen(chosen.clone()),
            Message::Begin(Check::Query),
        ];
        let broke = Ended::Broke("crashed with signal 11 SIGSEGV".to_owned());
        let (findings, adapter) = device_findings(Outcome { messages, ended: broke.clone(), errors: vec![] });
        assert_eq!(adapter, Some(chosen));
        assert_eq!(findings[0], good);
        assert_eq!((findings[1].check, findings[1].status), (Check::Query, Status::Problem));
        assert!(findings[1].detail.contains("SIGSEGV"));
        let (findings, adapter) = device_findings(Outcome { messages: vec![], ended: broke, errors: vec![] });
        assert_eq!(adapter, None);
        assert_eq!(findings[0].check, Check::Adapters);
        assert!(findings[0].advice.as_ref().is_some_and(|advice| advice.contains("VK_DRIVER_FILES")));
    }

    #[test]
    fn absence_is_explained_from_below() {
        let none = Finding::problem(Check::Adapters, "wgpu finds no adapter");
        let cause =
            Finding::problem(Check::DriverManifests, "there is no driver manifest").advise("install one");
        let mut findings = vec![
            Finding::warning(Check::Hardware, "nothing"),
            cause,
            none.clone(),
            Finding::problem(Check::Query, "x"),
        ];
        explain_absence(&mut findings);
        assert_eq!(findings[2].detail, "wgpu finds no adapter, since there is no driver manifest");
        assert_eq!((&findings[2].advice, &findings[3].advice), (&None, &None));
        let library = Finding::problem(Check::DriverLibrary, "a library does not load");
        let mut several = vec![library.clone(), library, none.clone()];
        explain_absence(&mut several);
        assert_eq!(
            several[2].detail,
            "wgpu finds no adapter, since a library does not load (and 1 more above)"
        );
        let mut hidden = vec![Finding::warning(Check::DriverManifests, "one is hidden"), none.clone()];
        explain_absence(&mut hidden);
        assert_eq!(hidden[1].detail, "wgpu finds no adapter, since one is hidden");
        let mut alone = vec![Finding::warning(Check::Hardware, "nothing"), none];
        explain_absence(&mut alone);
        assert_eq!(alone[1].advice.as_deref(), Some(device::NO_ADAPTER));
    }
}
