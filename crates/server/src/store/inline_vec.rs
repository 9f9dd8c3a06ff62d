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

    /// What a function makes of each element.
    pub fn map<U>(&self, function: impl FnMut(&T) -> U) -> InlineVec<U> {
        let mut function = function;
        match self {
            InlineVec::One(only) => InlineVec::One(function(only)),
            InlineVec::Many(several) => InlineVec::Many(several.iter().map(function).collect()),
        }
    }

    /// An element, to be changed.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match self {
            InlineVec::One(only) => Some(only).filter(|_| index == 0),
            InlineVec::Many(several) => several.get_mut(index),
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
