//! Texts of four versions of Lustre, read as they are, cut anywhere and spoilt anywhere. Written for these tests, by
//! what the versions print (see `lustre`), not taken from a machine.

use super::collected::Collected;
use super::lustre::Parser;
use super::{Counter, Counters, Reading, Sink, Subject, hosts};
use crate::clock::SECOND;
use crate::lines::Lines;
use jiff::tz::TimeZone;

/// 2.5: microseconds without zeros before them, bytes without squares, job_stats in seconds.
pub const V2_5: &str = "\
ost.OSS.ost_io.stats=
snapshot_time             1795600800.5012 secs.usecs
req_waittime              1000 samples [usec] 5 900 50000 9000000
req_qdepth                1000 samples [reqs] 0 9 2000 9000
req_active                1000 samples [reqs] 1 8 3000 12000
req_timeout               1000 samples [sec] 1 10 10000 100000
reqbuf_avail              2100 samples [bufs] 63 64 134000 8576000
ost_read                  400 samples [usec] 100 9000 800000 7200000000
obdfilter.scratch-OST0000.stats=
snapshot_time             1795600800.51000 secs.usecs
read_bytes                400 samples [bytes] 4096 1048576 104857600
write_bytes               600 samples [bytes] 1 1048576 314572800
statfs                    77 samples [reqs]
ping                      12 samples [reqs]
obdfilter.scratch-OST0000.job_stats=job_stats:
- job_id:          4711
  snapshot_time:   1795600799
  read_bytes:      { samples:          40, unit: bytes, min:    4096, max: 1048576, sum:        10485760 }
  write_bytes:     { samples:           0, unit: bytes, min:       0, max:       0, sum:               0 }
  setattr:         { samples:           0, unit:  reqs }
  punch:           { samples:           3, unit:  reqs }
- job_id:          ior run
  snapshot_time:   1795600790
  read:            { samples:           1, unit: bytes, min:      10, max:      10, sum:              10 }
  write:           { samples:           2, unit: bytes, min:      10, max:      10, sum:              20 }
obdfilter.scratch-OST0001.job_stats=job_stats:
obdfilter.scratch-OST0000.num_exports=5
";

/// 2.11: nanoseconds behind spaces, which it calls microseconds.
pub const V2_11: &str = "\
ost.OSS.ost_io.stats=
snapshot_time             1795600800.  5012000 secs.usecs
req_waittime              1000 samples [usec] 5 900 50000 9000000
req_qdepth                1000 samples [reqs] 0 9 2000 9000
req_active                1000 samples [reqs] 1 8 3000 12000
ost.OSS.ost_create.stats=snapshot_time             1795600800.  5112000 secs.usecs
ost.OSS.ost_seq.stats=
";

/// 2.12 to 2.14: nanoseconds, and a metadata server's job_stats.
pub const V2_12: &str = "\
ost.OSS.ost_io.stats=
snapshot_time             1795600800.005012000 secs.nsecs
req_waittime              1000 samples [usec] 5 900 50000 9000000
req_qdepth                1000 samples [reqs] 0 9 2000 9000
req_active                1000 samples [reqs] 1 8 3000 12000
mdt.scratch-MDT0000.job_stats=
job_stats:
- job_id:          4711
  snapshot_time:   1795600799
  open:            { samples:          10, unit:  reqs }
  close:           { samples:           9, unit:  reqs }
  mknod:           { samples:           1, unit:  reqs }
";

/// 2.15: other units, squares of bytes, start_time, quoted ids, times and sizes in job_stats.
pub const V2_15: &str = "\
ost.OSS.ost_io.stats=
snapshot_time             1795600800.005012000 secs.nsecs
start_time                1795500000.000000001 secs.nsecs
elapsed_time              100800.005011999 secs.nsecs
req_waittime              1000 samples [usecs] 5 900 50000 9000000
req_qdepth                1000 samples [reqs] 0 9 2000 9000
req_active                1000 samples [reqs] 1 8 3000 12000
req_timeout               1000 samples [secs] 1 10 10000 100000
obdfilter.scratch-OST0000.stats=
snapshot_time             1795600800.005100000 secs.nsecs
start_time                1795500000.000000001 secs.nsecs
elapsed_time              100800.005099999 secs.nsecs
read_bytes                400 samples [bytes] 4096 1048576 104857600 90000000000000
read                      400 samples [usecs] 86 16684 41700926 74443748896
create                    4 samples [usecs] 2 3605 7021 24637777
obdfilter.scratch-OST0000.job_stats=
job_stats:
- job_id:          \"a\\x20b\\x22:1\"
  snapshot_time:   1795600799.000000500 secs.nsecs
  start_time:      1795600700.000000000 secs.nsecs
  elapsed_time:    99.000000500 secs.nsecs
  read_bytes:      { samples: 40, unit: bytes, min: 4096, max: 1048576, sum: 10485760, hist: { 4K: 30, 1M: 10 } }
  read:            { samples: 40, unit: usecs, min: 1, max: 9, sum: 99, sumsq: 999 }
  punch:           { samples: 3, unit: usecs, min: 1, max: 9, sum: 19, sumsq: 99 }
";

pub const ALL: [&str; 4] = [V2_5, V2_11, V2_12, V2_15];
const START: i64 = 1_795_600_800 * SECOND;

fn read(text: &[u8]) -> Collected {
    let mut sink = Collected::default();
    hosts::read::<Parser>(&mut Lines::of("x", text), Some("oss1"), &TimeZone::UTC, &mut sink).unwrap();
    sink
}

/// A text behind which something follows, so that all of it counts.
fn read_whole(text: &str) -> Collected {
    read((text.to_owned() + "obdfilter.scratch-OST0000.num_exports=5\n").as_bytes())
}

fn find(sink: &Collected, subject: Subject) -> &Reading {
    sink.readings.iter().find(|reading| reading.subject == subject).unwrap_or_else(|| panic!("{subject:?}"))
}

fn values(reading: &Reading, wanted: [Counter; 4]) -> [Option<i64>; 4] {
    wanted.map(|counter| reading.counters[counter as usize])
}

const BYTES: [Counter; 4] = [Counter::ReadBytes, Counter::Writes, Counter::WriteBytes, Counter::Operations];

/// Goal: all versions tell the same of the same server, to the nanosecond.
#[test]
fn queues_of_versions() {
    for text in ALL {
        let sink = read_whole(text);
        let reading = find(&sink, Subject::Service("ost_io".into()));
        assert_eq!((reading.time, reading.snapshot), (START + 5_012_000, None), "{text}");
        let queue = [Counter::WaitCount, Counter::Wait, Counter::Depth, Counter::Active];
        assert_eq!(values(reading, queue), [Some(1000), Some(50_000), Some(2000), Some(3000)], "{text}");
        assert_eq!(reading.since, (text == V2_15).then_some(1_795_500_000 * SECOND + 1));
        assert_eq!(sink.skipped, [], "{text}");
    }
}

/// Goal: bytes and jobs of the oldest and the newest text are as they stand there; what was never counted is 0.
#[test]
fn targets_and_jobs() {
    let sink = read(V2_5.as_bytes());
    let target = find(&sink, Subject::Target("scratch-OST0000".into()));
    assert_eq!(values(target, BYTES), [Some(104_857_600), Some(600), Some(314_572_800), Some(89)]);
    let job = |id: &str| Subject::Job { target: "scratch-OST0000".into(), id: id.into() };
    assert_eq!(values(find(&sink, job("4711")), BYTES), [Some(10_485_760), Some(0), Some(0), Some(3)]);
    assert_eq!(values(find(&sink, job("ior run")), BYTES), [Some(10), Some(2), Some(20), Some(0)]);
    let at_metadata = Subject::Job { target: "scratch-MDT0000".into(), id: "4711".into() };
    assert_eq!(values(find(&read_whole(V2_12), at_metadata), BYTES), [Some(0), Some(0), Some(0), Some(20)]);
    // Where nothing follows, operations that are not printed may have been cut.
    let cut = read(V2_12.as_bytes());
    assert_eq!((cut.readings.len(), cut.skipped.len()), (1, 1));
}

/// Goal: the newest text: ids without their quotes, times of reads are no reads, and sizes of reads no sums.
#[test]
fn newest_jobs() {
    let sink = read_whole(V2_15);
    let target = find(&sink, Subject::Target("scratch-OST0000".into()));
    assert_eq!(values(target, BYTES), [Some(104_857_600), Some(0), Some(0), Some(4)]);
    let job = find(&sink, Subject::Job { target: "scratch-OST0000".into(), id: "a b\":1".into() });
    assert_eq!(values(job, BYTES), [Some(10_485_760), Some(0), Some(0), Some(3)]);
    // Last changed a second before, and seen when the statistics before it were printed.
    assert_eq!((job.time, job.snapshot), (START + 5_100_000, Some(START - SECOND + 500)));
    assert_eq!(job.since, Some(START - 100 * SECOND));
}

/// Goal: a service that nobody has asked anything yet has counted 0, in each of the ways in which it is printed; a
/// parameter without a text tells nothing.
#[test]
fn empty_sections() {
    let sink = read(V2_11.as_bytes());
    let create = find(&sink, Subject::Service("ost_create".into()));
    assert_eq!(create.counters[Counter::WaitCount as usize], Some(0));
    assert_eq!((sink.readings.len(), sink.skipped.len()), (2, 0));
    let sink = read(b"obdfilter.a-OST0000.job_stats=\njob_stats:\nobdfilter.a-OST0001.job_stats=job_stats:\n");
    assert_eq!((sink.readings.len(), sink.skipped.len()), (0, 0));
}

/// Every number of a text that was cut is one of the whole text, or it is not known.
fn assert_within(whole: &Collected, cut: &Collected, what: &str) {
    for reading in &cut.readings {
        let same = |other: &&Reading| (&other.subject, other.time) == (&reading.subject, reading.time);
        let Some(original) = whole.readings.iter().find(same) else { panic!("{what}: {reading:?}") };
        let known = reading.counters.iter().zip(&original.counters).all(|(cut, whole)| cut.is_none() || cut == whole);
        assert!(known, "{what}: {reading:?} of {original:?}");
        assert!(reading.since.is_none() || reading.since == original.since, "{what}");
    }
}

/// Goal: a log that is cut at any byte gives no number that was not there, and no panic. Method: every text, cut at
/// every byte, against the whole.
#[test]
fn cut_at_every_byte() {
    for text in ALL {
        let whole = read_whole(text);
        for size in 0..=text.len() {
            assert_within(&whole, &read(&text.as_bytes()[..size]), &text[..size]);
        }
    }
}

/// Goal: the same for lines behind hosts' names, mixed as pdsh mixes them.
#[test]
fn mixed_hosts() {
    let with_host = |host: &str| V2_5.lines().map(|line| format!("{host}: {line}\n")).collect::<Vec<_>>();
    let (one, two) = (with_host("oss1"), with_host("oss-2.site"));
    let text: String = one.iter().zip(&two).flat_map(|(one, two)| [one.as_str(), two.as_str()]).collect();
    let sink = read(text.as_bytes());
    let alone = read(V2_5.as_bytes());
    assert_eq!((sink.readings.len(), sink.skipped.len()), (2 * alone.readings.len(), 0));
    for reading in &alone.readings {
        for server in ["oss1", "oss-2.site"] {
            let same = |other: &&Reading| other.server == server && other.subject == reading.subject;
            let found = sink.readings.iter().find(same).unwrap();
            assert_eq!((found.counters, found.time), (reading.counters, reading.time));
        }
    }
}

/// Goal: fluentd's records give the same, whole texts or single lines, with the collector's time beside the server's.
#[test]
fn records_of_fluentd() {
    let wanted = read(V2_5.as_bytes());
    let collected = START + 2 * SECOND;
    let escaped = serde_json::to_string(V2_5).unwrap();
    let whole = format!("{{\"time\": 1795600802, \"host\": \"oss1\", \"message\": {escaped}}}\n");
    let lines: String = V2_5
        .lines()
        .map(|line| {
            format!("2026-11-25T10:00:02+00:00\tlustre.oss1\t{}\n", serde_json::json!({"host": "oss1", "log": line}))
        })
        .collect();
    for text in [whole, lines] {
        let sink = read(text.as_bytes());
        assert_eq!((sink.readings.len(), sink.skipped.len()), (wanted.readings.len(), 0), "{text}");
        for (reading, wanted) in sink.readings.iter().zip(&wanted.readings) {
            assert_eq!((reading.counters, &reading.subject), (wanted.counters, &wanted.subject));
            assert_eq!((reading.time, reading.snapshot), (collected, wanted.snapshot.or(Some(wanted.time))));
        }
    }
    let sink = read(b"{\"host\": \"oss1\"}\n{\"message\": 5}\n{\"mess");
    assert_eq!((sink.readings.len(), sink.skipped.len()), (0, 3));
}

/// A generator of numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

/// Goal: nothing that a log may hold makes a reader panic or take for ever. Method: texts with bytes changed, taken
/// out, doubled and mixed, and random bytes, through all readers; the seed is in the message of a panic.
#[test]
fn spoilt_anywhere() {
    for seed in 0..400 {
        let mut numbers = Numbers(seed);
        let mut text = ALL[numbers.below(ALL.len())].as_bytes().to_vec();
        for _ in 0..numbers.below(12) {
            let (at, other) = (numbers.below(text.len()), numbers.below(text.len()));
            match numbers.below(5) {
                0 => text[at] = numbers.below(256) as u8,
                1 => drop(text.drain(at.min(other)..at.max(other).min(at.min(other) + 40))),
                2 => text.splice(at..at, text[other..].iter().take(60).copied().collect::<Vec<_>>()).for_each(drop),
                3 => text.insert(at, b"={}[]:,.\n\t \"\\-9"[numbers.below(15)]),
                _ => text.splice(at..at, b"99999999999999999999".iter().copied()).for_each(drop),
            }
        }
        every_reader(&text, seed);
        let noise: Vec<u8> = (0..numbers.below(4000)).map(|_| numbers.below(256) as u8).collect();
        every_reader(&noise, seed);
    }
}

fn every_reader(text: &[u8], seed: u64) {
    use super::{jobs, nodes, pbs, sacct_json, table::Style};
    let sink = read(text);
    for reading in &sink.readings {
        assert!(reading.counters.iter().flatten().all(|counter| *counter >= 0), "seed {seed}: {reading:?}");
    }
    let mut sink = Collected::default();
    // Whether they take it or refuse it is not the question here.
    let _ = pbs::read(&mut Lines::of("x", text), &mut sink);
    let _ = sacct_json::read("x", text, &mut sink);
    let _ = nodes::read("x", &mut Lines::of("x", text), &mut sink);
    for style in [Style::Csv, Style::Bars] {
        let _ = jobs::read_table("x", style, &mut Lines::of("x", text), &TimeZone::UTC, &mut sink);
        let head: &[u8] = if style == Style::Csv { b"id,start,end,nodes\n" } else { b"JobID|Start|End|NodeList\n" };
        let _ =
            jobs::read_table("x", style, &mut Lines::of("x", &[head, text].concat()[..]), &TimeZone::UTC, &mut sink);
    }
}

/// Goal: what is not printed is not made up: a counter that has a line which can't be read is not known, not 0.
#[test]
fn lines_of_no_use() {
    let text = "ost.OSS.ost_io.stats=\nsnapshot_time 1795600800.0 secs.nsecs\nreq_waittime 5 samples [years] 1 2 3 4\n\
        req_qdepth 5 samples [reqs] 0 0 99999999999999999999 0\nreq_active 5 samples [reqs] 1 1 5 5\nwhat is this\n\
        obdfilter.a-OST0000.stats=\nread_bytes 1 samples [bytes] 1 1 1\n\
        snapshot_time 1795600800.0 secs.nsecs\nread_bytes 1 samples [bytes] 1 1\nx.y=1\nof another one\n";
    let sink = read(text.as_bytes());
    assert_eq!(sink.readings.len(), 2);
    let bytes = [Counter::Reads, Counter::ReadBytes, Counter::Writes, Counter::WriteBytes];
    assert_eq!(values(&sink.readings[1], bytes), [None, None, Some(0), Some(0)]);
    let mut wanted = Counters::default();
    (wanted[Counter::ActiveCount as usize], wanted[Counter::Active as usize]) = (Some(5), Some(5));
    assert_eq!(sink.readings[0].counters, wanted);
    let lines: Vec<u64> = sink.skipped.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [3, 4, 6, 8, 10], "{:?}", sink.skipped);
}

/// Goal: a sink that fails ends the reading at once.
#[test]
fn failures_end_it() {
    struct Full;
    impl Sink for Full {
        fn job(&mut self, _: super::Job) -> crate::failure::Outcome {
            Err(crate::failure::Failure::failed("full"))
        }
        fn node(&mut self, _: super::Node) -> crate::failure::Outcome {
            Ok(())
        }
        fn reading(&mut self, _: Reading) -> crate::failure::Outcome {
            Err(crate::failure::Failure::failed("full"))
        }
        fn skipped(&mut self, _: u64, _: &str) -> crate::failure::Outcome {
            Ok(())
        }
    }
    assert!(
        hosts::read::<Parser>(&mut Lines::of("x", V2_5.as_bytes()), Some("oss1"), &TimeZone::UTC, &mut Full).is_err()
    );
    assert!(super::sacct_json::read("x", &b"{\"jobs\": [{\"job_id\": 1}]}"[..], &mut Full).is_err());
}
