//! Events that an operator would act on. Whoever runs a loop may take them; where nobody does, in simulations and in
//! clients, they are dropped. Nothing on the way of a request is an event.

use std::cell::RefCell;
use std::rc::Rc;

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Life goes on as it should.
    Info,
    /// Something is worse than it should be, and may mend itself.
    Warning,
    /// Somebody has to do something.
    Error,
}

impl Level {
    pub const ALL: [Level; 3] = [Level::Info, Level::Warning, Level::Error];

    pub fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }

    pub fn of_name(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// One event: a short name that stays the same, words for people, and facts by name.
pub struct LogEvent<'a> {
    pub level: Level,
    pub name: &'static str,
    pub words: &'a str,
    pub facts: &'a [Fact<'a>],
}

/// A fact: its name, and its value as it is shown.
pub type Fact<'a> = (&'static str, &'a dyn std::fmt::Display);

type Sink = Rc<dyn Fn(&LogEvent<'_>)>;

thread_local! {
    static SINK: RefCell<Option<Sink>> = const { RefCell::new(None) };
}

/// Takes the events of loops on this thread from now on.
pub fn take_events(sink: impl Fn(&LogEvent<'_>) + 'static) {
    SINK.set(Some(Rc::new(sink)));
}

/// Tells of an event.
pub fn event(level: Level, name: &'static str, words: &str, facts: &[Fact<'_>]) {
    let sink = SINK.with_borrow(Option::clone);
    if let Some(sink) = sink {
        sink(&LogEvent { level, name, words, facts });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: events go nowhere before somebody takes them, and then whole.
    #[test]
    fn events_are_taken() {
        event(Level::Info, "unheard", "nobody is there", &[]);
        let heard = Rc::new(RefCell::new(Vec::new()));
        let ears = heard.clone();
        take_events(move |event| {
            let facts: Vec<String> = event.facts.iter().map(|(key, value)| format!("{key}={value}")).collect();
            ears.borrow_mut().push(format!(
                "{} {} {} {}",
                event.level.name(),
                event.name,
                event.words,
                facts.join(" ")
            ));
        });
        event(Level::Warning, "heard", "somebody is", &[("count", &3)]);
        assert_eq!(*heard.borrow(), ["warning heard somebody is count=3"]);
        assert!(Level::Error > Level::Warning && Level::of_name("error") == Some(Level::Error));
    }
}
