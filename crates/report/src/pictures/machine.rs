//! The machine by X and Y: each place has the colour of what its nodes' I/O servers had to bear, on average over the
//! job's time; the job's own places are framed.

use super::Head;
use super::colours::{Colours, LEGEND_HEIGHT};
use super::servers::draw_head;
use super::svg::Svg;
use crate::analysis::FoundJob;
use crate::database::{self, Database, values};
use crate::options::{Measure, Scale};
use crate::words;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Places along one axis; what lies beyond shares one.
const PLACES_MAX: i64 = 380;
const SIDE_MAX: f64 = 760.0;
const CELL_MAX: f64 = 40.0;
const LEFT: f64 = 70.0;
const RIGHT_MIN: f64 = 480.0;
const HEAD_HEIGHT: f64 = 84.0;
const AXIS_HEIGHT: f64 = 40.0;
const NAMED_MAX: usize = 6;

/// Where nodes stand, and how that was told.
pub struct Layout {
    nodes: Vec<(String, i64, i64)>,
    x_title: &'static str,
    y_title: &'static str,
    /// The coordinates of the axes' ends, left, right, top and bottom, where nodes have coordinates.
    ends: Option<[i64; 4]>,
    /// Nodes that stand nowhere, where others have coordinates.
    pub left_out: u64,
}

struct NodeRow {
    name: String,
    rack: Option<String>,
    x: Option<i64>,
    y: Option<i64>,
}

/// By coordinates if nodes have them, else by racks, else in the order of their names.
pub fn layout(database: &Database, job: &FoundJob) -> database::Result<Layout> {
    let read =
        |row: &database::Row<'_>| Ok(NodeRow { name: row.get(0)?, rack: row.get(1)?, x: row.get(2)?, y: row.get(3)? });
    let mut nodes = database.query("SELECT name, rack, x, y FROM nodes ORDER BY name", &[], read)?;
    if nodes.is_empty() {
        let of_job = |name: &String| NodeRow { name: name.clone(), rack: None, x: None, y: None };
        nodes = job.nodes.iter().map(of_job).collect();
    }
    nodes.sort_by_cached_key(|node| crate::analysis::natural(&node.name));
    Ok(if nodes.iter().any(|node| node.x.is_some() && node.y.is_some()) {
        by_coordinates(nodes)
    } else if nodes.iter().any(|node| node.rack.is_some()) {
        by_racks(nodes)
    } else {
        in_order(nodes)
    })
}

fn by_coordinates(nodes: Vec<NodeRow>) -> Layout {
    let all = nodes.len();
    let placed: Vec<_> = nodes.into_iter().filter_map(|node| Some((node.name, node.x?, node.y?))).collect();
    let left_out = (all - placed.len()) as u64;
    let (x, y) = (placed.iter().map(|node| node.1), placed.iter().map(|node| node.2));
    let (x, y) = (DrawnAxis::of(x), DrawnAxis::of(y));
    let nodes = placed.into_iter().map(|(name, at_x, at_y)| (name, x.place(at_x), y.place(at_y))).collect();
    Layout { nodes, x_title: "x", y_title: "y", ends: Some([x.least, x.most, y.least, y.most]), left_out }
}

/// Coordinates from 0 on, as many as are drawn.
struct DrawnAxis {
    least: i64,
    most: i64,
    merged: i128,
}

impl DrawnAxis {
    fn of(values: impl Iterator<Item = i64> + Clone) -> DrawnAxis {
        let (least, most) = (values.clone().min().unwrap_or(0), values.max().unwrap_or(0));
        let count = i128::from(most) - i128::from(least) + 1;
        DrawnAxis { least, most, merged: (count + i128::from(PLACES_MAX) - 1) / i128::from(PLACES_MAX) }
    }

    fn place(&self, value: i64) -> i64 {
        ((i128::from(value) - i128::from(self.least)) / self.merged) as i64
    }
}

fn by_racks(nodes: Vec<NodeRow>) -> Layout {
    let mut racks: BTreeMap<Vec<(u64, String)>, Vec<String>> = BTreeMap::new();
    for node in nodes {
        racks.entry(crate::analysis::natural(node.rack.as_deref().unwrap_or(""))).or_default().push(node.name);
    }
    let (across, down) = (DrawnAxis::of([0, racks.len() as i64 - 1].into_iter()), racks.values().map(Vec::len).max());
    let down = DrawnAxis::of([0, down.unwrap_or(1) as i64 - 1].into_iter());
    let place = |(x, names): (usize, Vec<String>)| {
        let x = across.place(x as i64);
        names.into_iter().enumerate().map(|(y, name)| (name, x, down.place(y as i64))).collect::<Vec<_>>()
    };
    let nodes = racks.into_values().enumerate().flat_map(place).collect();
    Layout { nodes, x_title: "racks", y_title: "nodes of a rack", ends: None, left_out: 0 }
}

fn in_order(nodes: Vec<NodeRow>) -> Layout {
    let side = ((nodes.len() as f64).sqrt().ceil() as i64).max(1);
    let axis = DrawnAxis::of([0, side - 1].into_iter());
    let place = |(index, node): (usize, NodeRow)| {
        let index = index as i64;
        (node.name, axis.place(index % side), axis.place(index / side))
    };
    let nodes = nodes.into_iter().enumerate().map(place).collect();
    Layout { nodes, x_title: "nodes by name, row by row", y_title: "", ends: None, left_out: 0 }
}

/// A place of the picture.
#[derive(Default)]
struct Cell {
    value: Option<f64>,
    nodes: u64,
    job_nodes: u64,
    names: Vec<String>,
}

/// What is drawn, and how.
pub struct Picture<'a> {
    pub measure: Measure,
    pub scale: Scale,
    pub congested_from: Option<f64>,
    pub head: Head,
    /// A server's value over the job's time.
    pub values: &'a HashMap<String, Option<f64>>,
}

impl Picture<'_> {
    pub fn draw(self, database: &Database, job: &FoundJob, layout: &Layout) -> database::Result<String> {
        let cells = self.cells(database, job, layout)?;
        let colours =
            Colours::new(self.measure, self.scale, cells.values().filter_map(|cell| cell.value), self.congested_from);
        let columns = cells.keys().map(|(x, _)| x + 1).max().unwrap_or(1) as f64;
        let rows = cells.keys().map(|(_, y)| y + 1).max().unwrap_or(1) as f64;
        // Whole pixels, so that there are no seams.
        let side = (SIDE_MAX / columns.max(rows)).clamp(2.0, CELL_MAX).floor();
        let (width, height) = (side * columns, side * rows);
        let total_width = LEFT + width.max(RIGHT_MIN) + 30.0;
        let mut svg = Svg::begin(total_width, HEAD_HEIGHT + height + AXIS_HEIGHT + LEGEND_HEIGHT + 10.0);
        draw_head(&mut svg, &self.head);
        let area_of =
            |place: &(i64, i64)| (LEFT + place.0 as f64 * side, HEAD_HEIGHT + place.1 as f64 * side, side, side);
        for (place, cell) in &cells {
            svg.rectangle(area_of(place), &colours.fill(cell.value), Some(&self.title(cell)));
        }
        for (place, _) in cells.iter().filter(|(_, cell)| cell.job_nodes > 0) {
            let (x, y, w, h) = area_of(place);
            svg.outline((x + 0.75, y + 0.75, w - 1.5, h - 1.5), "#000000", if side < 6.0 { 0.75 } else { 1.5 });
        }
        svg.frame((LEFT, HEAD_HEIGHT, width, height));
        let bottom = HEAD_HEIGHT + height;
        svg.text(LEFT + width / 2.0, bottom + 20.0, 12, "middle", layout.x_title);
        svg.text(LEFT - 8.0, HEAD_HEIGHT + 12.0, 12, "end", layout.y_title.split(' ').next().unwrap_or_default());
        if let Some([left, right, top, low]) = layout.ends {
            svg.text(LEFT, bottom + 20.0, 12, "start", &left.to_string());
            svg.text(LEFT + width, bottom + 20.0, 12, "end", &right.to_string());
            svg.text(LEFT - 8.0, HEAD_HEIGHT + 28.0, 12, "end", &top.to_string());
            svg.text(LEFT - 8.0, bottom, 12, "end", &low.to_string());
        }
        colours.draw_legend(&mut svg, LEFT, bottom + AXIS_HEIGHT + 4.0);
        Ok(svg.end())
    }

    /// The places that have nodes. Of several nodes the one counts whose server had to bear most.
    fn cells(
        &self,
        database: &Database,
        job: &FoundJob,
        layout: &Layout,
    ) -> database::Result<BTreeMap<(i64, i64), Cell>> {
        let of_job: HashSet<&str> = job.nodes.iter().map(String::as_str).collect();
        let servers = "SELECT server FROM node_servers WHERE node = ?1 ORDER BY server";
        let mut cells: BTreeMap<(i64, i64), Cell> = BTreeMap::new();
        for (name, x, y) in &layout.nodes {
            let cell = cells.entry((*x, *y)).or_default();
            cell.nodes += 1;
            cell.job_nodes += u64::from(of_job.contains(name.as_str()));
            if cell.names.len() < NAMED_MAX {
                cell.names.push(name.clone());
            }
            for server in database.query(servers, values![name], |row| row.get::<String>(0))? {
                let value = self.values.get(&server).copied().flatten();
                cell.value = cell.value.into_iter().chain(value).reduce(f64::max);
            }
        }
        Ok(cells)
    }

    fn title(&self, cell: &Cell) -> String {
        let value = cell.value.map_or_else(|| "not known".to_owned(), |value| self.measure.words(value));
        let more = if cell.nodes > cell.names.len() as u64 { ", ..." } else { "" };
        let job = if cell.job_nodes > 0 {
            format!("; {} of the job", words::plural(cell.job_nodes, "node"))
        } else {
            String::new()
        };
        format!("{}{more}: {value}{job}", cell.names.join(", "))
    }
}
