//! How pages look: light and dark, by what the reader's system says.

use crate::pictures::colours::{Shade, page_colour};
use std::fmt::Write as _;
use std::sync::LazyLock;

pub const STYLE: &str = "
:root{color-scheme:light dark;--paper:#fff;--ink:#1f2328;--dim:#59636e;--line:#d1d9e0;--one:#2171b5;--two:#b45309;\
--mark:#b42318}
@media(prefers-color-scheme:dark){:root{--paper:#0d1117;--ink:#e6edf3;--dim:#9198a1;--line:#3d444d;--one:#6cb6ff;\
--two:#f0a34a;--mark:#ff938a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
main{max-width:1100px;margin:0 auto;padding:16px}
h1{font-size:24px;margin:8px 0;overflow-wrap:anywhere}h2{font-size:17px;margin:28px 0 8px}
.dim,small{color:var(--dim)}small{display:block;font-size:12px}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px;margin:16px 0}
.facts div{border:1px solid var(--line);border-radius:6px;padding:8px 10px;min-width:0}
dt{color:var(--dim);font-size:12px}dd{margin:0;font-size:19px;overflow-wrap:anywhere}
.findings{padding-left:0;list-style:none}
.findings li{border-left:4px solid var(--mark);padding:2px 0 2px 10px;margin:10px 0;overflow-wrap:anywhere}
figure{margin:8px 0 16px}figcaption{font-size:13px}
.curve{width:100%;height:60px;display:block;border-bottom:1px solid var(--line)}
.one path{fill:var(--one)}.two path{fill:var(--two)}
.heat{display:flex;gap:6px}.heat>svg{flex:1;min-width:0;border:1px solid var(--line)}
.names{display:flex;flex-direction:column;justify-content:space-around;font-size:11px;line-height:1;max-width:38%}
.names span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.times{display:flex;justify-content:space-between;font-size:12px;color:var(--dim)}
.heat+.times{padding-left:60px}
.legend{display:flex;gap:6px;align-items:center;font-size:12px;margin-top:4px}
.legend svg{width:180px;height:12px}.legend .small{width:16px;margin-left:16px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:3px 8px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap;font-weight:normal}
thead th{color:var(--dim)}.left{text-align:left}
";

/// A rule for each shade, in both lights.
pub static HEAT_STYLE: LazyLock<String> = LazyLock::new(|| {
    let mut text = String::new();
    for dark in [false, true] {
        if dark {
            text.push_str("@media(prefers-color-scheme:dark){");
        }
        for shade in (0..Shade::COUNT).map(Shade::Blue).chain([Shade::Unknown]) {
            let _ = write!(text, ".{}{{fill:{}}}", shade.class(), page_colour(shade, dark));
        }
        if dark {
            text.push('}');
        }
    }
    text
});
