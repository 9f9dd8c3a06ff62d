//! What tests of this module share.

use std::path::PathBuf;

/// A directory that goes with the test.
pub(crate) struct TestDirectory {
    pub path: PathBuf,
}

impl TestDirectory {
    pub fn new(name: &str) -> TestDirectory {
        let path = std::env::temp_dir().join(format!("tabane-backing-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TestDirectory { path }
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Goal: memory of calls that hang outlives tree and loop, and that of calls that have ended does not. Method: a
/// carrier that does nothing by itself.
mod memory {
    use crate::backing::{Backing, BackingOperation, BackingOutcome, CALLS_MAX, CallId};
    use crate::{Class, DriverKind, Nanos, OpenMode, Reactor, Span};
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

    #[derive(Default)]
    struct SiteScript {
        begun: RefCell<Vec<(CallId, &'static str)>>,
        ended: RefCell<VecDeque<(CallId, Result<BackingOutcome, i32>)>>,
        waker: RefCell<Option<Waker>>,
    }

    struct ScriptedSite(Rc<SiteScript>);

    impl Backing for ScriptedSite {
        fn name(&self) -> &'static str {
            "script"
        }
        fn now(&self) -> Nanos {
            0
        }
        fn begin(&self, call: CallId, operation: BackingOperation) {
            let at_once = match operation {
                BackingOperation::OpenRoot { .. } | BackingOperation::Open { .. } => Some(BackingOutcome::Opened(1)),
                BackingOperation::Close { .. } => Some(BackingOutcome::Done),
                _ => None,
            };
            match at_once {
                Some(outcome) => self.0.ended.borrow_mut().push_back((call, Ok(outcome))),
                None => self.0.begun.borrow_mut().push((call, operation.word())),
            }
            self.0.waker.take().into_iter().for_each(Waker::wake);
        }
        fn poll_ended(&self, context: &mut Context<'_>) -> Poll<(CallId, Result<BackingOutcome, i32>)> {
            self.0.waker.replace(Some(context.waker().clone()));
            self.0.ended.borrow_mut().pop_front().map_or(Poll::Pending, Poll::Ready)
        }
        fn syncs_at_once(&self) -> bool {
            false
        }
        fn end(&self) -> bool {
            true
        }
    }

    impl SiteScript {
        fn end(&self, index: usize, result: Result<BackingOutcome, i32>) {
            let (call, _) = self.begun.borrow()[index];
            self.ended.borrow_mut().push_back((call, result));
            self.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    #[test]
    fn memory_belongs_to_its_call() {
        let directory = super::TestDirectory::new("memory");
        let reactor = Reactor::open(DriverKind::Epoll).unwrap();
        let region = reactor.storage(&directory.path).unwrap().open("r", 1 << 16, OpenMode::CreateNew).unwrap();
        region.allocate(0, 1 << 16).unwrap();
        let script = Rc::new(SiteScript::default());
        let tree = reactor.backing_tree_over(Box::new(ScriptedSite(script.clone())));
        let file = reactor.block_on(async { tree.root().await.unwrap().open_file("file").await.unwrap() });
        let span = || Span { region: region.clone(), offset: 0, size: 4096 };
        let read = |file: &crate::backing::BackingFile| {
            let (file, span) = (file.clone(), span());
            reactor
                .spawn_joinable(Class::Data, async move { file.read(0, span).await.0.map_err(|error| error.errno()) })
        };
        let users = || Rc::strong_count(&region);
        let turn = || while reactor.turn(false) {};
        assert_eq!(users(), 1);
        // In pieces, and then the end of the file.
        let whole = read(&file);
        turn();
        script.end(0, Ok(BackingOutcome::Moved(4000)));
        turn();
        script.end(1, Ok(BackingOutcome::Moved(0)));
        turn();
        assert_eq!((reactor.block_on(whole), users()), (Ok(4000), 1));
        // Dropped: the call keeps its memory, and is asked for no rest.
        let dropped = read(&file);
        turn();
        dropped.cancel();
        turn();
        assert_eq!((users(), tree.calls()[0].is_abandoned), (2, true));
        script.end(2, Ok(BackingOutcome::Moved(1)));
        turn();
        assert_eq!((users(), script.begun.borrow().len()), (1, 3));
        // More than there may be, of files in eight directories: those that were not begun give up theirs with the
        // tree, the others never.
        let open = async |number| tree.root().await.unwrap().open_file(format!("{number}/file")).await.unwrap();
        let files: Vec<_> = (0..8).map(|number| reactor.block_on(open(number))).collect();
        let reads: Vec<_> = (0..CALLS_MAX + 5).map(|number| read(&files[number % files.len()])).collect();
        turn();
        assert_eq!((users(), tree.statistics().waiting), (1 + CALLS_MAX + 5, 5));
        script.end(3, Err(libc::EIO));
        turn();
        assert_eq!((users(), tree.statistics().waiting), (CALLS_MAX + 5, 4));
        drop(reads);
        reactor.shutdown();
        drop((file, files, tree));
        assert_eq!(users(), 1 + CALLS_MAX);
    }
}
