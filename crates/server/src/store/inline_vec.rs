//! A list that usually has one element and then needs no memory of its own.

use std::ops::Deref;

/// See the module. Changed by replacing it.
#[derive(Clone, Debug)]
pub enum InlineVec<T> {
    /// Exactly one element.
    One(T),
    /// None, or several.
    Many(Box<[T]>),
}

impl<T: Copy> InlineVec<T> {
    /// A copy of the elements.
    pub fn from_slice(elements: &[T]) -> InlineVec<T> {
        match elements {
            [only] => InlineVec::One(*only),
            _ => InlineVec::Many(elements.into()),
        }
    }
}

impl<T> Default for InlineVec<T> {
    fn default() -> InlineVec<T> {
        InlineVec::Many(Box::new([]))
    }
}

impl<T> Deref for InlineVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            InlineVec::One(only) => std::slice::from_ref(only),
            InlineVec::Many(several) => several,
        }
    }
}
