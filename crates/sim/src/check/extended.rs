//! Extended attributes: each name of each file is a register, set, removed, read and listed.

use crate::history::{Action, Finding, Operation, Outcome};
use crate::linearize::{Done, Object, Span, Verdict};
use crate::losses::{self, Losses};
use crate::pattern;
use std::collections::BTreeMap;
use wire::messages::extended_flags::{CREATE, REPLACE};
use wire::{FileId, Status};

/// The value that an attribute is set to under a tag.
pub fn value(tag: pattern::Tag, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    pattern::fill(tag, 0, &mut bytes);
    bytes
}

struct AttributeRegister<'a> {
    name: &'a str,
    operations: Vec<(usize, &'a Operation)>,
}

impl Object for AttributeRegister<'_> {
    /// The number of the operation that set it.
    type State = Option<usize>;

    fn initial(&self) -> Option<usize> {
        None
    }

    fn is_look(&self, operation: usize) -> bool {
        let (_, told) = self.operations[operation];
        let looks = matches!(told.action, Action::GetExtended { .. } | Action::ListExtended { .. });
        looks || matches!(told.outcome, Outcome::Failed(_))
    }

    fn apply(&self, state: &Option<usize>, operation: usize, _done: &Done) -> Option<Option<usize>> {
        let (_, told) = self.operations[operation];
        let is_there = state.is_some();
        let (allowed, refusal, after) = match told.action {
            Action::SetExtended { flags: CREATE, .. } => (!is_there, Status::Exists, Some(operation)),
            Action::SetExtended { flags: REPLACE, .. } => (is_there, Status::NoAttribute, Some(operation)),
            Action::SetExtended { .. } => (true, Status::Exists, Some(operation)),
            Action::RemoveExtended { .. } => (is_there, Status::NoAttribute, None),
            Action::GetExtended { .. } => (is_there, Status::NoAttribute, *state),
            _ => (true, Status::NoAttribute, *state),
        };
        match &told.outcome {
            Outcome::Failed(status) => (!allowed && *status == refusal).then_some(*state),
            _ if !allowed => None,
            Outcome::Unknown(_) => (after != *state).then_some(after),
            Outcome::Bytes(bytes) => self.is_true(&told.action, *state, bytes).then_some(*state),
            _ => Some(after),
        }
    }
}

impl AttributeRegister<'_> {
    fn is_true(&self, action: &Action, state: Option<usize>, bytes: &[u8]) -> bool {
        if let Action::ListExtended { .. } = action {
            let listed = bytes.split(|byte| *byte == 0).any(|name| name == self.name.as_bytes());
            return listed == state.is_some();
        }
        match state.map(|setter| &self.operations[setter].1.action) {
            Some(Action::SetExtended { tag, size, .. }) => value(*tag, *size) == bytes,
            _ => false,
        }
    }
}

/// Checks all extended attributes.
pub fn check(losses: &Losses) -> Vec<Finding> {
    let operations = losses.operations;
    let mut registers: BTreeMap<(FileId, &str), Vec<(usize, &Operation)>> = BTreeMap::new();
    for (number, operation) in operations.iter().enumerate() {
        let (Action::SetExtended { file, name, .. }
        | Action::RemoveExtended { file, name }
        | Action::GetExtended { file, name }) = &operation.action
        else {
            continue;
        };
        registers.entry((*file, name)).or_default().push((number, operation));
    }
    for (number, operation) in operations.iter().enumerate() {
        if let (Action::ListExtended { file }, true) = (&operation.action, operation.succeeded()) {
            let of_file = registers.range_mut((*file, "")..).take_while(|((id, _), _)| id == file);
            of_file.for_each(|(_, register)| register.push((number, operation)));
        }
    }
    let mut findings = Vec::new();
    for ((file, name), operations) in registers {
        let spans: Vec<Span> =
            operations.iter().map(|(_, operation)| Span { start: operation.start, end: operation.end }).collect();
        let register = AttributeRegister { name, operations };
        let home = losses.cluster.home_of(file);
        let setbacks = home.map_or_else(Vec::new, |home| losses.setbacks(home, Some(file)));
        match losses::check(&register, &spans, &setbacks) {
            Verdict::Linearizable => {}
            Verdict::Impossible(missing) => {
                let concerned = missing.iter().map(|index| register.operations[*index].0).collect();
                let words = format!("file {file}: no order explains what was told about its attribute {name}");
                findings.push(Finding::new(words, concerned));
            }
            Verdict::Undecided(_) => {
                let words = format!("file {file}: the history of its attribute {name} is too tangled to decide");
                findings.push(Finding::new(words, Vec::new()));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;

    const FILE: FileId = FileId(9);

    fn set(tag: u32, flags: u32) -> Action {
        Action::SetExtended { file: FILE, name: "user.a".to_owned(), tag, size: 20, flags }
    }

    fn get() -> Action {
        Action::GetExtended { file: FILE, name: "user.a".to_owned() }
    }

    fn findings(steps: Vec<(Action, Outcome)>) -> usize {
        let mut history = History::default();
        for (action, outcome) in steps {
            let index = history.start(0, action, 0);
            history.finish(index, outcome, 0);
        }
        check(&Losses::new(&history, &crate::losses::cluster_of(1))).len()
    }

    /// Goal: lost, repeated and mixed values are found, and so are refusals without a reason.
    #[test]
    fn registers() {
        let told = |tag| Outcome::Bytes(value(tag, 20));
        let remove = || Action::RemoveExtended { file: FILE, name: "user.a".to_owned() };
        assert_eq!(findings(vec![(set(1, 0), Outcome::Done), (get(), told(1))]), 0);
        assert_eq!(findings(vec![(set(1, 0), Outcome::Done), (set(2, REPLACE), Outcome::Done), (get(), told(1))]), 1);
        assert_eq!(findings(vec![(set(1, 0), Outcome::Done), (get(), Outcome::Failed(Status::NoAttribute))]), 1);
        assert_eq!(findings(vec![(set(1, CREATE), Outcome::Failed(Status::Exists))]), 1);
        assert_eq!(findings(vec![(set(1, CREATE), Outcome::Done), (set(2, CREATE), Outcome::Done)]), 1);
        assert_eq!(findings(vec![(set(1, 0), Outcome::Unknown(None)), (get(), told(1))]), 0);
        assert_eq!(findings(vec![(set(1, 0), Outcome::Unknown(None)), (remove(), Outcome::Done)]), 0);
        assert_eq!(findings(vec![(set(1, 0), Outcome::Done), (remove(), Outcome::Done), (get(), told(1))]), 1);
    }

    /// Goal: a list that hides or invents a name is found.
    #[test]
    fn lists() {
        let list = |names: &str| (Action::ListExtended { file: FILE }, Outcome::Bytes(names.as_bytes().to_vec()));
        assert_eq!(findings(vec![(set(1, 0), Outcome::Done), list("user.a\0")]), 0);
        assert_eq!(findings(vec![(set(1, 0), Outcome::Done), list("")]), 1);
        assert_eq!(findings(vec![list("user.a\0"), (set(1, 0), Outcome::Done)]), 1);
    }
}
