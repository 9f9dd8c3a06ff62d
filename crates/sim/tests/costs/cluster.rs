//! Operations on the cluster as a whole.

use crate::stage::{Measured, Stage};
use crate::table::{About, Row};
use client::check::CheckOptions;
use client::{FileId, OpenHow};

const OTHERS: Row = Row {
    about: About::Others,
    what: "",
    requests: "N",
    waits: "1",
    messages: "0",
    servers_min: 1,
    holders_min: 1,
    cases: &[],
};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            what: "sync, syncfs, fsync of a directory; statfs; statistics of all servers",
            cases: &[synchronise_all, synchronise_directory, statfs, statistics],
            ..OTHERS
        },
        Row {
            what: "check of a cluster with few names and nothing wrong",
            requests: "5 N",
            waits: "3 N + 2",
            cases: &[check],
            ..OTHERS
        },
        Row { what: "what up to 512 files take (du)", requests: "N", cases: &[allocated], ..OTHERS },
        Row { what: "ping", requests: "1", cases: &[ping], ..OTHERS },
    ]
}

fn synchronise_all(stage: &Stage) -> Measured {
    stage.measure(|fs| async move { fs.synchronise_all().await.expect("synchronised") })
}

fn synchronise_directory(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let directory =
        stage.run(|fs| async move { fs.open(directory.as_bytes(), &OpenHow::reading()).await.expect("open") });
    stage.measure(|fs| async move { fs.synchronise(&directory).await.expect("synchronised") })
}

fn statfs(stage: &Stage) -> Measured {
    stage.measure(|fs| async move { fs.stat_file_system().await.expect("statfs") })
}

fn statistics(stage: &Stage) -> Measured {
    stage.measure(|fs| async move {
        let asked = (0..fs.server_count()).map(|server| {
            let fs = fs.clone();
            Box::pin(
                async move { drop(fs.server_statistics(server, client::StatisticsFormat::JSON).await.expect("told")) },
            )
        });
        let mut asked: Vec<_> = asked.collect();
        std::future::poll_fn(|context| {
            asked.retain_mut(|asked| asked.as_mut().poll(context).is_pending());
            if asked.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    })
}

fn check(stage: &Stage) -> Measured {
    stage.measure(|fs| async move {
        let report = fs.check(&CheckOptions::default(), &|_| {}).await.expect("checked");
        assert_eq!((report.faults, report.undecided), (vec![], vec![]));
    })
}

fn allocated(stage: &Stage) -> Measured {
    stage.measure(|fs| async move { assert_eq!(fs.allocated(&[FileId::ROOT]).await, Ok(vec![0])) })
}

fn ping(stage: &Stage) -> Measured {
    stage.measure(|fs| async move { fs.ping(0).await.expect("there") })
}
