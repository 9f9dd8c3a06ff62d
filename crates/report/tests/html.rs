//! The page of a job: what is on it, that it needs nothing else, and how large it may get.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{Counted, START, Scratch, Version, documents_of, load};
use rusqlite::{Connection, params};

const PAGE_SIZE_MAX: usize = 3 << 20;

/// What a page may not have: scripts, and anything that is elsewhere.
fn check_stands_alone(page: &str) {
    let lower = page.to_lowercase();
    for text in ["<script", "http:", "https:", "src=", "href=", "url(", "@import", "javascript:", "onload", "<iframe"] {
        assert!(!lower.contains(text), "{text}");
    }
    assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none'"));
}

/// Elements are opened and closed in pairs, so that no name broke out of its place.
fn check_is_balanced(page: &str) {
    let body = &page[page.find("<body>").unwrap()..];
    let xml = body.replace("</html>\n", "").replace("<br>", "<br/>");
    let document = roxmltree::Document::parse(&xml).unwrap_or_else(|error| panic!("{error}: {xml}"));
    assert!(document.descendants().any(|node| node.has_tag_name("h1")));
}

/// Goal: the page says what the job was, what should be changed, and how each server was.
#[test]
fn what_is_on_it() {
    let scratch = Scratch::new("html");
    let mut told = vec![load(); 4];
    told[2].busy_ns = 9_500_000_000;
    told.iter_mut().for_each(|told| told.ranks = &[(50, 50_000_000), (50, 50_000_000), (400, 320_000_000)]);
    scratch.file("status.json", &documents_of("4458aef012bb3c283639e2e9badb4102", &told, 60));
    let head = "id,name,user,state,start,end,nodes";
    let jobs = format!("{head}\n7,fluid,alice,COMPLETED,{START},{},tabane-4458aef0\n", START + 600);
    scratch.file("jobs.csv", &jobs);
    scratch.done("import p.db --jobs jobs.csv --tabane status.json");
    let page = scratch.done("html 7 p.db");
    for words in [
        "<h1>job 7 (fluid)</h1>",
        "by alice, COMPLETED, 2026-11-25 10:00:00 to 2026-11-25 10:10:00, 10 min 00 s",
        "<dt>written</dt><dd>4.7 GiB<small>by the job itself</small>",
        "<b>busy-loop</b> 4458aef0-2 was at work 95 % of each second",
        "written: 8.0 MiB/s at most",
        "<th scope=\"row\" class=\"left\">4458aef0-3</th>",
        "Servers by time: time that requests wait",
        "Servers by time: bytes read and written",
        "<title>not known</title>",
        "<b>slow-rank</b> rank 2 on n2 waited 76.8 s for answers, the other 2 ranks on average 12.0 s: it asked 8",
        "<p class=\"dim\">Job 7: 3 ranks waited 33.6 s on average.</p>",
        "<tr><th scope=\"row\">2</th><td class=\"left\">n2</td><td>76.8 s</td><td>38.4 s</td>\
         <td>96,000</td><td>2.29</td>",
        // 25 calls a step of each of four servers.
        "<th scope=\"row\" class=\"left\">(removed or not looked for: id 17)</th><td>6,000</td><td>1.2 GiB</td>",
    ] {
        let is_there = page.contains(words);
        // What is known everywhere has no path of its own.
        assert!(is_there || words.contains("not known"), "{words} in {page}");
    }
    check_stands_alone(&page);
    check_is_balanced(&page);
    scratch.done("html 7 p.db --output a.html");
    assert_eq!(scratch.text("a.html"), page);
}

/// Goal: names that hold markup, quotes, formulas or control characters are texts, wherever they stand.
#[test]
fn hostile_names() {
    let scratch = Scratch::new("html-hostile");
    let name = "<script>alert(1)</script>\"'&<img src=x onload=y>=cmd|' /C calc'!A0";
    let jobs = serde_json::json!({ "jobs": [{ "job_id": 7, "name": name, "user_name": name, "job_state": name,
        "time": { "start": START, "end": START + 120 }, "nodes": "n1" }] });
    scratch.file("jobs.json", &jobs.to_string());
    scratch.file("nodes.csv", "node,io_server\nn1,\"<b>oss1</b>\"\n");
    let counted = |minute: u64| Counted { requests: 100 * minute, wait: 9_000_000 * minute, ..Counted::default() };
    let log: String = (0..3).map(|minute| Version::V2_15.text(START + 60 * minute, 0, &counted(minute))).collect();
    scratch.file("x.log", &log);
    let output =
        scratch.command("import p.db --jobs jobs.json --nodes nodes.csv --lustre").arg("<b>oss1<b>&=x.log").output();
    assert!(output.unwrap().status.success());
    let page = scratch.done("html 7 p.db");
    check_is_balanced(&page);
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && page.contains("&lt;b&gt;oss1"), "{page}");
    assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("<b>oss1"), "{page}");
}

/// Fills a place with a server for each number, that counted at every step from [`START`] on.
fn fill(scratch: &Scratch, servers: i64, steps: i64, step: i64, wait_of: impl Fn(i64, i64) -> i64) {
    let end = START as i64 + steps * step;
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{end},n1\n"));
    scratch.file(
        "nodes.csv",
        &format!(
            "node,io_server\nn1,\"{}\"\n",
            (0..servers).map(|server| format!("oss{server}")).collect::<Vec<_>>().join(" ")
        ),
    );
    scratch.done("import p.db --jobs jobs.csv --nodes nodes.csv");
    let mut connection = Connection::open(scratch.0.join("p.db")).unwrap();
    let transaction = connection.transaction().unwrap();
    for server in 0..servers {
        let name = format!("oss{server}");
        transaction.execute("INSERT INTO servers VALUES (?, ?, NULL)", params![server, name]).unwrap();
        let (queue, target) = (2 * server, 2 * server + 1);
        let insert = "INSERT INTO series VALUES (?, ?, ?, ?, '')";
        transaction.execute(insert, params![queue, server, "service", "ost_io"]).unwrap();
        transaction.execute(insert, params![target, server, "target", "OST0"]).unwrap();
        let mut sample = transaction
            .prepare("INSERT INTO samples VALUES (?, ?, NULL, NULL, ?, ?, ?, ?, NULL, NULL, NULL, NULL, ?, ?, NULL)")
            .unwrap();
        let (mut wait, mut bytes) = (0, 0);
        for number in 0..=steps {
            let time = (START as i64 + number * step) * 1_000_000_000;
            let none = None::<i64>;
            sample.execute(params![queue, time, number * 100, wait, number * 100, wait / 10, none, none]).unwrap();
            sample.execute(params![target, time, none, none, none, none, number, bytes]).unwrap();
            wait += 100 * wait_of(server, number);
            bytes += wait_of(server, number) * 4096;
        }
    }
    transaction.commit().unwrap();
}

/// Goal: a report of eight hours, whatever happened in them, has at most 3 MiB. Method: 120 servers with noise that no
/// two cells share, a sample every ten seconds.
#[test]
fn eight_hours() {
    let scratch = Scratch::new("html-long");
    let noise = |server: i64, number: i64| {
        let mixed = (server * 2_880 + number) as u64;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xd134_2543_de82_ef95) >> 48) as i64
    };
    fill(&scratch, 120, 2_880, 10, noise);
    let page = scratch.done("html 7 p.db");
    assert!(page.len() <= PAGE_SIZE_MAX, "{}", page.len());
    assert!(page.len() > 256 << 10, "{}: the noise has to be on it", page.len());
    assert!(page.contains("oss0 to oss1") && page.contains("8 h 00 min"));
    check_is_balanced(&page);
    println!("{} bytes", page.len());
}

/// Goal: thinning keeps peaks: one interval of many thousands is on the page, with its value and time.
#[test]
fn peaks_stay() {
    let scratch = Scratch::new("html-peak");
    fill(&scratch, 3, 14_400, 2, |server, number| if (server, number) == (1, 9_001) { 5_000 } else { 10 });
    let page = scratch.done("html 7 p.db");
    // Tens of requests that wait, but for the one interval: 10:00 and 18,002 s.
    assert!(page.contains("<dt>most waiting</dt><dd>500<small>oss1, 15:00:02</small>"), "{page}");
    let shade = &page[page.find("class=\"b16\" d=\"").unwrap()..];
    assert!(shade.starts_with("class=\"b16\" d=\"M"), "{shade}");
    let cells = &shade[..shade.find("><title>").unwrap()];
    assert_eq!(cells.matches('M').count(), 1, "{cells}");
    assert!(page.len() < 256 << 10, "{}", page.len());
}

/// Goal: a job of which nothing is known has a page that says so, and what can't be asked or written leaves nothing.
#[test]
fn little_and_refusals() {
    let scratch = Scratch::new("html-little");
    scratch.file("jobs.csv", &format!("id,start,end,nodes\n7,{START},{},n1\n", START + 60));
    scratch.done("import p.db --jobs jobs.csv");
    let page = scratch.done("html 7 p.db");
    assert!(page.contains("nothing is known of its servers in this time"), "{page}");
    check_is_balanced(&page);
    assert!(scratch.refused("html 8 p.db", 1).contains("there is no job 8"));
    assert!(scratch.refused("html 7 p.db --output no/where.html", 1).contains("no/where.html"));
    assert_eq!(scratch.files("."), ["jobs.csv", "p.db"]);
}
