use arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::*;

fn set(key: &str, value: &str) -> Result<GpuOptions> {
    let mut config = ConfigOptions::default();
    config.extensions.insert(GpuOptions::default());
    config.set(key, value)?;
    Ok(GpuOptions::from_config(&config))
}

fn error(key: &str, value: &str) -> String {
    set(key, value).expect_err("the value must be refused").to_string()
}

#[test]
fn values_are_typed() {
    assert_eq!(set("gpu.placement", "Force").unwrap().placement, Placement::Force);
    assert_eq!(set("gpu.fallback", "error").unwrap().fallback, FallbackPolicy::Error);
    assert_eq!(set("gpu.exchanges", "keep").unwrap().exchanges, Exchanges::Keep);
    assert!(!set("gpu.enabled", "FALSE").unwrap().enabled);
    assert_eq!(set("gpu.min_rows", "0").unwrap().min_rows, 0);
    assert_eq!(set("gpu.adapter", "Radeon RX").unwrap().adapter, "Radeon RX");
    assert_eq!(set("gpu.batch_bytes", "16 MiB").unwrap().batch_bytes, ByteSize(16 << 20));
}

#[test]
fn memory_limits() {
    assert_eq!(GpuOptions::default().memory_limit.bytes(), None);
    assert_eq!(set("gpu.memory_limit", "4GiB").unwrap().memory_limit.bytes(), Some(4 << 30));
    assert_eq!(set("gpu.memory_limit", "3gb").unwrap().memory_limit.bytes(), Some(3_000_000_000));
    assert_eq!(set("gpu.memory_limit", "1234").unwrap().memory_limit.bytes(), Some(1234));
    assert_eq!(set("gpu.memory_limit", "").unwrap().memory_limit.bytes(), None);
    for bad in ["4 elephants", "GiB", "-1", "0", "1.5GiB", "99999999TiB"] {
        let text = error("gpu.memory_limit", bad);
        assert!(text.contains(&format!("invalid value '{bad}' for gpu.memory_limit")), "{text}");
    }
}

#[test]
fn wrong_values_name_the_choices() {
    let text = error("gpu.placement", "gpu");
    assert!(text.contains("invalid value 'gpu' for gpu.placement"), "{text}");
    assert!(text.contains("'auto', 'force', 'off'"), "{text}");
    assert!(error("gpu.fallback", "").contains("'warn', 'silent', 'error'"));
    assert!(error("gpu.exchanges", "x").contains("'collapse', 'keep'"));
    assert!(error("gpu.enabled", "yes").contains("'true' or 'false'"));
    assert!(error("gpu.min_rows", "-3").contains("whole number"));
    for bad in ["0", "-1", "many"] {
        assert!(error("gpu.batch_rows", bad).contains("1 or greater"), "{bad}");
    }
}

#[test]
fn unknown_options_name_the_known() {
    let text = error("gpu.plcement", "force");
    assert!(text.contains("unknown option gpu.plcement"), "{text}");
    assert!(text.contains("gpu.placement") && text.contains("gpu.batch_bytes"), "{text}");
}

#[test]
fn what_is_shown_can_be_set_again() {
    let mut options = set("gpu.memory_limit", "1536MiB").unwrap();
    options.placement = Placement::Force;
    options.adapter = "llvmpipe".to_string();
    let mut copy = GpuOptions::default();
    for entry in options.entries() {
        assert!(!entry.description.is_empty() && !entry.description.contains('\n'), "{}", entry.key);
        copy.set(&entry.key, &entry.value.expect("every option has a value")).unwrap();
    }
    assert_eq!(copy, options);
    assert_eq!(copy.entries().len(), GpuOptions::NAMES.len());
}

#[tokio::test]
async fn set_and_show_by_sql() {
    let config =
        SessionConfig::new().with_information_schema(true).with_option_extension(GpuOptions::default());
    let ctx = SessionContext::new_with_config(config);
    ctx.sql("SET gpu.memory_limit = '2GiB'").await.unwrap();
    let shown = ctx.sql("SHOW gpu.memory_limit").await.unwrap().collect().await.unwrap();
    let text = pretty_format_batches(&shown).unwrap().to_string();
    assert!(text.contains("gpu.memory_limit") && text.contains("2GiB"), "{text}");
    let wrong = ctx.sql("SET gpu.placement = sideways").await.unwrap_err().to_string();
    assert!(wrong.contains("'auto', 'force', 'off'"), "{wrong}");
}
