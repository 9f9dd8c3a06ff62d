//! A list that usually has one element and then needs no memory of its own.

use std::ops::Deref;

/// See the module. Changed by replacing it.
#[derive(Clone, Debug)]
pub enum Few<T> {
    /// Exactly one element.
    One(T),
    /// None, or several.
    Many(Box<[T]>),
}

impl<T: Copy> Few<T> {
    /// A copy of the elements.
    pub fn from_slice(elements: &[T]) -> Few<T> {
        match elements {
            [only] => Few::One(*only),
            _ => Few::Many(elements.into()),
        }
    }
}

impl<T> Default for Few<T> {
    fn default() -> Few<T> {
        Few::Many(Box::new([]))
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Few::One(only) => std::slice::from_ref(only),
            Few::Many(several) => several,
        }
    }
}
