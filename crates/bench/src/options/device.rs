//! What `uring` measures.

use super::values::{Values, parse_list, parse_size};
use crate::device_load::{INTERFACES, Interface, PATTERNS, Pattern};
use std::path::PathBuf;

/// The most that one operation moves.
const SIZE_MAX: u64 = 1 << 22;

/// Options of `uring`.
#[derive(Debug, Clone)]
pub struct DeviceBench {
    /// Unset means a file that is made for it.
    pub path: Option<PathBuf>,
    /// Of a file that is made.
    pub size: u64,
    pub sizes: Vec<usize>,
    pub depths: Vec<u32>,
    pub patterns: Vec<Pattern>,
    pub interfaces: Vec<Interface>,
    pub overwrite: bool,
    pub fio: bool,
}

impl DeviceBench {
    pub fn read(values: &Values<'_>) -> Result<DeviceBench, String> {
        let sizes = values.text("operation-sizes").unwrap_or_default();
        let sizes = parse_list(&sizes, parse_size).ok_or("--operation-sizes: not sizes")?;
        if let Some(size) = sizes.iter().find(|size| !(512..=SIZE_MAX).contains(size)) {
            return Err(format!("--operation-sizes: {size} is out of range (512 to {SIZE_MAX})"));
        }
        Ok(DeviceBench {
            path: values.text("device").map(PathBuf::from),
            size: values.size("device-size", SIZE_MAX, 1 << 50)?.unwrap_or(SIZE_MAX),
            sizes: sizes.into_iter().map(|size| size as usize).collect(),
            depths: values.counts("depths", 256)?,
            patterns: values.words("patterns", &PATTERNS)?,
            interfaces: values.words("interfaces", &INTERFACES)?,
            overwrite: values.text("overwrite").is_some(),
            fio: values.text("fio").is_some(),
        })
    }
}
