//! What the doctor found, as data, and how it is shown.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

/// What was looked at, from the bottom to the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// The library that finds Vulkan drivers.
    VulkanLoader,
    /// The files that name the drivers.
    DriverManifests,
    /// A driver's library.
    DriverLibrary,
    /// GPUs on the PCI bus.
    Hardware,
    /// Device nodes under /dev.
    DeviceNodes,
    /// What a container lets through.
    Container,
    /// Adapters that wgpu finds.
    Adapters,
    /// 64-bit integers in shaders.
    Int64,
    /// 64-bit floats in shaders.
    Float64,
    /// Opening the chosen adapter.
    Device,
    /// Results of the numerics probe.
    Numerics,
    /// What stays on the CPU because of this adapter.
    Declined,
    /// Timestamp queries.
    Timestamps,
    /// Device memory, and how much of it is used.
    Memory,
    /// A query on the GPU, compared with the CPU.
    Query,
}

impl Check {
    fn title(self) -> &'static str {
        match self {
            Check::VulkanLoader => "Vulkan loader",
            Check::DriverManifests => "driver manifests",
            Check::DriverLibrary => "driver library",
            Check::Hardware => "GPU hardware",
            Check::DeviceNodes => "device nodes",
            Check::Container => "container",
            Check::Adapters => "adapters",
            Check::Int64 => "64-bit integers",
            Check::Float64 => "64-bit floats",
            Check::Device => "device",
            Check::Numerics => "numerics",
            Check::Declined => "declined",
            Check::Timestamps => "timestamps",
            Check::Memory => "memory",
            Check::Query => "query",
        }
    }
}

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Worth knowing; it does not stop the chosen adapter.
    Warning,
    /// Something does not work.
    Problem,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Problem => "problem",
        })
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at.
    pub check: Check,
    /// How it is.
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn ok(check: Check, detail: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, detail: detail.into(), advice: None }
    }

    /// Worth knowing.
    pub fn warning(check: Check, detail: impl Into<String>) -> Self {
        Self { check, status: Status::Warning, detail: detail.into(), advice: None }
    }

    /// Something does not work.
    pub fn problem(check: Check, detail: impl Into<String>) -> Self {
        Self { check, status: Status::Problem, detail: detail.into(), advice: None }
    }

    /// With what to do.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// The adapter that was examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// Its number, for `--adapter`.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// It runs on the CPU.
    pub software: bool,
}

/// The outcome as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A real GPU works.
    Ok,
    /// The adapter works, and it is the CPU.
    SoftwareOnly,
    /// No adapter can be used, or it gives wrong answers.
    Unusable,
}

impl Verdict {
    /// Exit code of the program.
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Ok => 0,
            Verdict::Unusable => 1,
            Verdict::SoftwareOnly => 3,
        }
    }
}

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Version of the program.
    pub version: &'static str,
    /// Operating system and architecture.
    pub platform: String,
    /// The outcome as a whole.
    pub verdict: Verdict,
    /// The adapter that was examined; none where there is none.
    pub adapter: Option<Chosen>,
    /// The findings, from the bottom to the top.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The verdict on `findings`. Where a real GPU works, what is wrong below it does not matter to it, and is a warning.
    pub fn new(mut findings: Vec<Finding>, adapter: Option<Chosen>) -> Self {
        let broken = findings.iter().any(|f| f.check >= Check::Adapters && f.status == Status::Problem);
        let answered = findings.iter().any(|f| f.check == Check::Query && f.status == Status::Ok);
        let verdict = match &adapter {
            Some(chosen) if answered && !broken && chosen.software => Verdict::SoftwareOnly,
            Some(_) if answered && !broken => Verdict::Ok,
            _ => Verdict::Unusable,
        };
        if verdict == Verdict::Ok {
            findings.iter_mut().for_each(|finding| finding.status = finding.status.min(Status::Warning));
        }
        Self {
            version: env!("CARGO_PKG_VERSION"),
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            verdict,
            adapter,
            findings,
        }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "datafusion-wgpu {} on {}", self.version, self.platform)?;
        for finding in &self.findings {
            let (status, title) = (finding.status, finding.check.title());
            writeln!(out, "{status:<9}{title:<18}{}", one_line(&finding.detail))?;
            if let Some(advice) = &finding.advice {
                writeln!(out, "{:27}-> {}", "", one_line(advice))?;
            }
        }
        let name = self.adapter.as_ref().map_or("", |chosen| &chosen.name);
        match self.verdict {
            Verdict::Ok => writeln!(out, "Result: {name} works."),
            Verdict::SoftwareOnly => writeln!(
                out,
                "Result: {name} works, but it is a software adapter, which runs on the CPU: for trying out, with --gpu force."
            ),
            Verdict::Unusable if name.is_empty() => {
                writeln!(out, "Result: no usable adapter; queries stay on the CPU.")
            }
            Verdict::Unusable => writeln!(out, "Result: {name} can't be used; see the problem above."),
        }
    }
}

/// Texts of drivers and of the system may have line breaks.
fn one_line(text: &str) -> String {
    text.trim().replace(['\r', '\n'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(software: bool) -> Option<Chosen> {
        Some(Chosen { index: 0, name: "Test GPU".to_owned(), software })
    }

    #[test]
    fn verdicts_and_exit_codes() {
        let driver = Finding::problem(Check::DriverLibrary, "libGLX_nvidia.so.0 does not load");
        let query = Finding::problem(Check::Query, "wrong");
        let good = Finding::ok(Check::Query, "equal");
        for (findings, adapter, code) in [
            (vec![good.clone()], chosen(false), 0),
            (vec![driver.clone(), good.clone()], chosen(false), 0),
            (vec![driver.clone(), good.clone()], chosen(true), 3),
            (vec![good.clone(), query.clone()], chosen(false), 1),
            (vec![query], chosen(true), 1),
            (vec![driver.clone()], None, 1),
            (vec![Finding::ok(Check::Device, "opened")], chosen(false), 1),
            (vec![], None, 1),
        ] {
            let report = Report::new(findings.clone(), adapter);
            assert_eq!(report.verdict.exit_code(), code, "{findings:?}");
        }
        // A driver that the working GPU does not need is a warning; the software adapter does not excuse it.
        let findings = [driver, good];
        let status = |software| Report::new(findings.to_vec(), chosen(software)).findings[0].status;
        assert_eq!(status(false), Status::Warning);
        assert_eq!(status(true), Status::Problem);
    }

    #[test]
    fn text_and_json_say_the_same() {
        let findings = vec![
            Finding::ok(Check::VulkanLoader, "Vulkan 1.3"),
            Finding::problem(Check::Adapters, "none\nat all").advise("install one"),
        ];
        let report = Report::new(findings.clone(), None);
        let text = report.text();
        assert!(text.contains("ok       Vulkan loader     Vulkan 1.3\n"), "{text}");
        assert!(text.contains("problem  adapters          none at all\n"), "{text}");
        assert!(text.contains("                           -> install one\n"), "{text}");
        assert!(text.ends_with("Result: no usable adapter; queries stay on the CPU.\n"), "{text}");
        let wrong = Report::new(vec![Finding::problem(Check::Query, "wrong")], chosen(true)).text();
        assert!(wrong.ends_with("Result: Test GPU can't be used; see the problem above.\n"), "{wrong}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["verdict"], "unusable");
        assert_eq!(json["findings"][1]["check"], "adapters");
        assert_eq!(json["findings"][0]["check"], "vulkan-loader");
        let back: Vec<Finding> = serde_json::from_value(json["findings"].clone()).unwrap();
        assert_eq!(back, findings);
    }
}
