//! Heat maps as SVG: servers by time, and the machine by X and Y.

pub mod colours;
pub mod machine;
pub mod servers;
pub mod svg;

use crate::analysis::Row;
use crate::options::Measure;
use crate::words;

impl Measure {
    pub fn of(self, row: &Row) -> Option<f64> {
        match self {
            Measure::ReqQdepth => row.depth,
            Measure::ReqWaittime => row.wait,
            Measure::ReqActive => row.active,
            Measure::Requests => row.requests,
            Measure::Bytes => row.bytes(),
        }
    }

    /// What it is, for a title.
    pub fn title(self) -> &'static str {
        match self {
            Measure::ReqQdepth => "waiting requests (req_qdepth)",
            Measure::ReqWaittime => "time that requests wait (req_waittime)",
            Measure::ReqActive => "requests in work (req_active)",
            Measure::Requests => "requests per second",
            Measure::Bytes => "bytes read and written per second",
        }
    }

    /// A value with its unit.
    pub fn words(self, value: f64) -> String {
        match self {
            Measure::ReqQdepth | Measure::ReqActive => words::number(value),
            Measure::ReqWaittime => words::microseconds(value),
            Measure::Requests => format!("{}/s", words::number(value)),
            Measure::Bytes => format!("{}/s", words::size(value)),
        }
    }
}

/// What stands above a picture.
pub struct Head {
    pub title: String,
    pub about: Vec<String>,
}
