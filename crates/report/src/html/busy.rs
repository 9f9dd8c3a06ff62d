//! Processes that waited longest, and files and directories to which most was done.

use super::escaped;
use crate::advice::Evidence;
use crate::analysis::File;
use crate::asked::Asked;
use crate::database;
use crate::failure::Outcome;
use crate::sources::tabane;
use crate::words;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const RANKS_TOLD_MAX: usize = 8;
const FILES_TOLD_MAX: usize = 10;
/// What a request counts as beside its bytes, as servers order them.
const REQUEST_WORK: f64 = 4096.0;

/// A program's processes beside the mean of all of them.
pub fn put_ranks(page: &mut String, evidence: &Evidence) {
    for job in evidence.ranks.iter().filter(|job| job.count >= 2.0 && job.seconds > 0.0) {
        let mean = job.seconds / job.count;
        let _ = writeln!(
            page,
            "<h2>Processes that waited longest for answers</h2>\n\
             <p class=\"dim\">Job {}: {} waited {} on average.</p>\n\
             <table><thead><tr><th>rank</th><th class=\"left\">host</th><th>waited</th><th>servers were at work</th>\
             <th>answers</th><th>of the mean</th></tr></thead><tbody>",
            escaped(&words::name(job.told.first().map_or("", |rank| &rank.job))),
            words::plural(job.count as u64, "rank"),
            words::microseconds(mean * 1e6)
        );
        for rank in job.told.iter().take(RANKS_TOLD_MAX) {
            let _ = writeln!(
                page,
                "<tr><th scope=\"row\">{}</th><td class=\"left\">{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td></tr>",
                escaped(&words::name(&rank.name)),
                escaped(&words::name(&rank.host)),
                words::microseconds(rank.seconds * 1e6),
                words::microseconds(rank.served_seconds * 1e6),
                words::count(rank.answers.round() as u64),
                words::number(rank.seconds / mean)
            );
        }
        page.push_str("</tbody></table>\n");
    }
}

/// What all servers together did for a file, those first for which they did most.
fn files_of(asked: &Asked) -> database::Result<Vec<(String, File)>> {
    let question = asked.question();
    let mut sums = BTreeMap::<(String, String), File>::new();
    for (server, _) in &asked.found.names {
        for file in question.files(server)? {
            let key = (tabane::cluster_of(server).to_owned(), file.id.clone());
            let add = |sum: &mut File| {
                sum.requests += file.requests;
                sum.seconds += file.seconds;
                sum.read_bytes += file.read_bytes;
                sum.write_bytes += file.write_bytes;
            };
            sums.entry(key).and_modify(add).or_insert(file);
        }
    }
    let work = |file: &File| file.requests * REQUEST_WORK + file.read_bytes + file.write_bytes;
    let mut files: Vec<((String, String), File)> = sums.into_iter().filter(|(_, file)| work(file) > 0.0).collect();
    // Of as much work the smaller number, as `tabane status --files` has them: it finds paths for its first ones only.
    let number = |id: &str| u64::from_str_radix(id, 16).unwrap_or(u64::MAX);
    files.sort_by(|((_, one_id), one), ((_, other_id), other)| {
        work(other).total_cmp(&work(one)).then_with(|| number(one_id).cmp(&number(other_id)))
    });
    files.truncate(FILES_TOLD_MAX);
    let named = files.into_iter().map(|((cluster, id), file)| {
        let path = question.path(&cluster, &id)?;
        Ok((path.unwrap_or_else(|| format!("(removed or not looked for: id {id})")), file))
    });
    named.collect()
}

/// Of all jobs at these servers: servers tell no files by jobs.
pub fn put_files(page: &mut String, asked: &Asked) -> Outcome {
    let files = files_of(asked).map_err(|error| asked.failed(error))?;
    if files.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<h2>Files and directories to which most was done</h2>\n<p class=\"dim\">By all jobs at these servers, but for \
         what clients read and looked at by themselves.</p>\n<div class=\"wide\"><table><thead><tr>\
         <th class=\"left\">path</th><th>requests</th><th>read</th><th>written</th><th>servers were at work</th></tr>\
         </thead><tbody>\n",
    );
    for (path, file) in files {
        let slash = if file.is_directory && !path.ends_with(['/', ')']) { "/" } else { "" };
        let _ = writeln!(
            page,
            "<tr><th scope=\"row\" class=\"left\">{}{slash}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&words::name(&path)),
            words::count(file.requests.round() as u64),
            words::size(file.read_bytes),
            words::size(file.write_bytes),
            words::microseconds(file.seconds * 1e6)
        );
    }
    page.push_str("</tbody></table></div>\n");
    Ok(())
}
