//! Nodes: where they stand and which servers do their I/O, from a CSV table; or Slurm's switches, which tell racks.

use super::table::{Columns, Style, TableRow};
use super::{Node, Sink, some_text};
use crate::failure::{Failure, Outcome};
use crate::lines::{Lines, Next};
use crate::{host_list, words};

/// Reads a file of nodes. What a line names that a host list is becomes as many nodes.
pub fn read(name: &str, lines: &mut Lines<'_>, sink: &mut impl Sink) -> Outcome {
    let mut columns = None;
    let mut switches = 0;
    loop {
        let (number, text) = match lines.next()? {
            Next::End => return Ok(()),
            Next::TooLong(number) => {
                sink.skipped(number, "the line is too long")?;
                continue;
            }
            Next::Line(line) => (line.number, line.text),
        };
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        let found = if let Some(switch) = switch_of(&text) {
            of_switch(&switch, &mut switches)
        } else if let Some(columns) = &columns {
            Columns::row(columns, &text).and_then(|row| of_row(&row))
        } else if switches > 0 {
            Err("names no switch".to_owned())
        } else {
            columns = Some(Columns::of(Style::Csv, &text, &["node"]).map_err(|why| {
                Failure::failed(format!(
                    "{name}: {why}; wanted are node, and rack, x, y, io_server as far as they are known"
                ))
            })?);
            continue;
        };
        match found {
            Ok(nodes) => nodes.into_iter().try_for_each(|node| sink.node(node))?,
            Err(why) => sink.skipped(number, &why)?,
        }
    }
}

/// `SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-16]` of topology/tree, `BlockName=b0 BlockIndex=0 Nodes=n[1-4]` of
/// topology/block.
struct Switch<'a> {
    name: &'a str,
    is_leaf: bool,
    nodes: &'a str,
}

fn switch_of(line: &str) -> Option<Switch<'_>> {
    let value = |key: &str| {
        let mut pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
        pairs.find(|(found, _)| found.eq_ignore_ascii_case(key)).map(|(_, value)| value)
    };
    let name = value("SwitchName").or_else(|| value("BlockName"))?;
    let level = value("Level").is_none_or(|level| level == "0");
    Some(Switch { name, is_leaf: level && value("Switches").is_none(), nodes: value("Nodes").unwrap_or_default() })
}

fn of_switch(switch: &Switch<'_>, switches: &mut u64) -> Result<Vec<Node>, String> {
    *switches += 1;
    if !switch.is_leaf {
        return Ok(Vec::new());
    }
    let names = host_list::names(switch.nodes).map_err(|why| format!("its nodes can't be read: {why}"))?;
    let rack = some_text(switch.name);
    Ok(names.into_iter().map(|name| Node { name, rack: rack.clone(), ..Node::default() }).collect())
}

fn of_row(row: &TableRow<'_>) -> Result<Vec<Node>, String> {
    let names = host_list::names(row.get("node")).map_err(|why| format!("its nodes can't be read: {why}"))?;
    if names.is_empty() {
        return Err("names no node".into());
    }
    let coordinate = |column: &str| match row.get(column) {
        "" => Ok(None),
        text => {
            text.parse::<i64>().map(Some).map_err(|_| format!("{column} is \"{}\", no whole number", words::name(text)))
        }
    };
    let (x, y, rack) = (coordinate("x")?, coordinate("y")?, some_text(row.get("rack")));
    let servers = row.get("io_server").split([' ', ';']).filter_map(some_text).collect::<Vec<_>>();
    Ok(names.into_iter().map(|name| Node { name, rack: rack.clone(), x, y, servers: servers.clone() }).collect())
}

#[cfg(test)]
mod tests {
    use super::super::collected::Collected;
    use super::*;

    fn read_all(text: &str) -> Collected {
        let mut sink = Collected::default();
        read("x", &mut Lines::of("x", text.as_bytes()), &mut sink).unwrap();
        sink
    }

    /// Goal: leaf switches and blocks tell racks, upper switches nothing, and a list that can't be read is named.
    #[test]
    fn switches() {
        let sink = read_all(
            "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n\
             SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=s[0-1]\n\
             BlockName=b0 BlockIndex=0 Nodes=n3 BlockSize=4\nSwitchName=s1 Level=0 Nodes=n[4-\n",
        );
        let racks: Vec<_> = sink.nodes.iter().map(|node| (node.name.as_str(), node.rack.as_deref())).collect();
        assert_eq!(racks, [("n1", Some("s0")), ("n2", Some("s0")), ("n3", Some("b0"))]);
        assert_eq!(sink.skipped.len(), 1);
    }

    /// Goal: a table gives places and servers, several for one node too.
    #[test]
    fn table() {
        let sink = read_all("node,rack,x,y,io_server\nn[1-2],r1,0,1,oss1 oss2\nn3,,,,\nn4,r1,left,0,\n");
        assert_eq!(sink.nodes.len(), 3);
        assert_eq!((sink.nodes[1].x, sink.nodes[1].servers.len()), (Some(0), 2));
        assert_eq!((sink.nodes[2].rack.clone(), sink.nodes[2].x), (None, None));
        assert_eq!(sink.skipped[0].0, 4);
    }
}
