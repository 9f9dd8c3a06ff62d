//! Heat maps: that they are pictures, and show what the samples say.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{Counted, START, Scratch, Version, texts_of};

/// Four servers over ten minutes; the third one is congested in minutes 4 to 6.
fn place(scratch: &Scratch) {
    scratch.file(
        "jobs.csv",
        &format!("id,start,end,nodes,name,user\n4711,{START},{},\"n[1-8]\",ior,alice\n", START + 600),
    );
    let mut nodes = "node,rack,x,y,io_server\n".to_owned();
    for node in 1..=16 {
        nodes +=
            &format!("n{node},r{},{},{},oss{}\n", (node - 1) / 4, (node - 1) % 4, (node - 1) / 4, (node - 1) % 4 + 1);
    }
    scratch.file("nodes.csv", &nodes);
    for server in 1..=4u64 {
        let (mut log, mut counted) = (String::new(), Counted::default());
        for minute in 0..=10u64 {
            log += &Version::V2_15.text(START + 60 * minute, 0, &counted);
            let waiting = if server == 3 && (4..7).contains(&minute) { 60 } else { server };
            counted.requests += 600;
            counted.depth += 600 * waiting;
            counted.wait += 600 * waiting * 1000;
            counted.active += 600;
        }
        scratch.file(&format!("oss{server}.log"), &log);
    }
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv --lustre oss1.log oss2.log oss3.log oss4.log");
}

fn colour_of(scratch: &Scratch, file: &str, title: &str) -> String {
    let text = scratch.text(file);
    let document = roxmltree::Document::parse(&text).unwrap();
    let is_wanted = |node: &roxmltree::Node<'_, '_>| node.text().is_some_and(|text| text.starts_with(title));
    let title = document.descendants().filter(|node| node.has_tag_name("title")).find(is_wanted);
    title.unwrap_or_else(|| panic!("no {file}")).parent().unwrap().attribute("fill").unwrap().to_owned()
}

fn is_red(colour: &str) -> bool {
    let channel = |at: usize| u8::from_str_radix(&colour[at..at + 2], 16).unwrap();
    channel(1) > channel(5)
}

/// Goal: servers by time: the congested intervals are red and counted, others blue, each says its value; CSV and
/// picture tell the same.
#[test]
fn servers_by_time() {
    let scratch = Scratch::new("by-time");
    place(&scratch);
    let told = scratch.done("job 4711 p.db --heat-map a.svg --congested-from 16 --csv out");
    assert!(told.contains("3 of 40 known intervals of servers"), "{told}");
    assert!(told.contains("most waiting: 60.0 at 10:04:00, each for 60.0 ms"), "{told}");
    let texts = texts_of(&scratch.0.join("a.svg"));
    for words in ["job 4711 (ior): waiting requests", "oss1", "oss4", "10:04:00", "congested from 16.0 on", "not known"]
    {
        assert!(texts.iter().any(|text| text.contains(words)), "{words} in {texts:?}");
    }
    assert!(texts.iter().any(|text| text == "oss3, 10:04:00: 60.0"), "{texts:?}");
    assert!(is_red(&colour_of(&scratch, "a.svg", "oss3, 10:04:00")));
    for cell in ["oss3, 10:03:00", "oss3, 10:07:00", "oss4, 10:04:00"] {
        assert!(!is_red(&colour_of(&scratch, "a.svg", cell)), "{cell}");
    }
    assert_eq!(scratch.files("out"), ["4711-oss1.csv", "4711-oss2.csv", "4711-oss3.csv", "4711-oss4.csv"]);
    let depths = common::column(&common::rows_of(&scratch.text("out/4711-oss3.csv")), "req_qdepth");
    assert_eq!(depths, ["3", "3", "3", "3", "60", "60", "60", "3", "3", "3"]);
}

/// Goal: the machine by X and Y: a place has the colour of its server, the job's places are framed, and racks or the
/// order of names stand in where there are no coordinates.
#[test]
fn the_machine() {
    let scratch = Scratch::new("machine");
    place(&scratch);
    scratch.done("job 4711 p.db --heat-map a.svg --map machine --congested-from 16 --scale log");
    assert!(is_red(&colour_of(&scratch, "a.svg", "n15: 20.1")));
    assert!(!is_red(&colour_of(&scratch, "a.svg", "n4: 4.00; 1 node of the job")));
    let framed = scratch.text("a.svg").matches("stroke=\"#000000\"").count();
    assert_eq!(framed, 8);
    // Without coordinates: racks; without racks: names.
    for (nodes, words) in
        [("node,rack\nn[1-4],r1\nn[5-8],r2\n", "racks"), ("node\nn[1-8]\n", "nodes by name, row by row")]
    {
        let file = format!("{}.db", words.len());
        scratch.file("nodes.csv", nodes);
        scratch.done(&format!("import {file} --jobs jobs.csv --nodes nodes.csv --lustre oss3.log"));
        scratch.done(&format!("job 4711 {file} --heat-map b.svg --map machine"));
        let texts = texts_of(&scratch.0.join("b.svg"));
        assert!(texts.iter().any(|text| text == words), "{texts:?}");
    }
}

/// Goal: a job without any sample is drawn as not known, and long jobs keep their peaks though intervals share columns.
#[test]
fn nothing_and_much() {
    let scratch = Scratch::new("much");
    place(&scratch);
    scratch.file("later.csv", &format!("id,start,end,nodes\n5,{},{},n1\n", START + 90_000, START + 90_600));
    scratch.done("import p.db --jobs later.csv");
    let told = scratch.done("job 5 p.db --heat-map a.svg --interval 60");
    assert!(told.contains("no samples of this time"), "{told}");
    assert_eq!(colour_of(&scratch, "a.svg", "oss1, "), "url(#unknown)");
    scratch.done("job 4711 p.db --heat-map b.svg --interval 0.1 --congested-from 16");
    let red = scratch.text("b.svg").matches("fill=\"#67000d\"").count();
    assert!(red >= 200, "{red}");
}
