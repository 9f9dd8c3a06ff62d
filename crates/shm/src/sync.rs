//! Atomics, fences and cells of shared memory: those of the standard library, or under `cfg(loom)` those of loom, which
//! tries all orders that the memory model of C11 allows.
//!
//! Every fence, and every ordering that is not relaxed, has a name here ([`Barrier`]; the table is in the crate's
//! head). Under loom a model can leave one out, and has to fail then. In ordinary builds a name costs nothing.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
use std::ops::Deref;
pub use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

macro_rules! barriers {
    ($($name:ident)*) => {
        /// A fence, or an ordering of an access, between two parties. See the table in the crate's head.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Barrier { $($name),* }

        /// All of them.
        pub const BARRIERS: &[Barrier] = &[$(Barrier::$name),*];
    };
}

barriers! {
    CellOdd CellEven CellFirstLook CellLastLook StampFirst StampLastLook HazardHold HazardLook HazardRelease
    HazardEnd HazardBegin HazardStands HazardIdLeave HazardIdReuse HazardIdLook HazardCountLeave
    HazardCountLook SubmissionBegin StepForbid WriteNumber SubmissionCommit SubmissionNote StateLook
    PermissionLeave PermissionLook TakenLeave TakenLook OwnerLeave OwnerLook LockFree LockLook
    NumberLook OpenLeave OpenLook NumbersLeave NumbersLook RingPut RingPutLook RingTaken RingTakenLook
    SleepLook WakeLook
}

/// A fence.
#[cfg(not(loom))]
#[inline(always)]
pub fn fence_at(_barrier: Barrier, ordering: Ordering) {
    std::sync::atomic::fence(ordering);
}

/// The ordering of an access.
#[cfg(not(loom))]
#[inline(always)]
pub fn order_at(_barrier: Barrier, ordering: Ordering) -> Ordering {
    ordering
}

#[cfg(loom)]
pub use models::{Fault, fence_at, order_at, set_fault};

#[cfg(loom)]
mod models {
    use super::{Barrier, Ordering};
    use std::cell::Cell;

    /// What is wrong in a model, which has to notice it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Fault {
        None,
        /// A fence is not there, or an ordering is relaxed.
        LeftOut(Barrier),
        /// A full fence is an acquire and release fence.
        Weakened(Barrier),
    }

    thread_local! {
        /// Loom runs all threads of a model on the one that has begun it.
        static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
    }

    /// What is wrong from now on in models of this thread.
    pub fn set_fault(fault: Fault) {
        FAULT.set(fault);
    }

    /// A fence, unless it is left out.
    pub fn fence_at(barrier: Barrier, ordering: Ordering) {
        match FAULT.get() {
            Fault::LeftOut(other) if other == barrier => {}
            Fault::Weakened(other) if other == barrier => loom::sync::atomic::fence(Ordering::AcqRel),
            _ => loom::sync::atomic::fence(ordering),
        }
    }

    /// The ordering of an access, or a relaxed one if it is left out.
    pub fn order_at(barrier: Barrier, ordering: Ordering) -> Ordering {
        if FAULT.get() == Fault::LeftOut(barrier) { Ordering::Relaxed } else { ordering }
    }
}

/// Something that has its cache lines for itself.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct CacheLine<T>(pub T);

/// Bytes of a cache line.
pub const LINE_SIZE: usize = 64;

const _: () = assert!(size_of::<CacheLine<u8>>() == LINE_SIZE && align_of::<CacheLine<u8>>() == LINE_SIZE);

impl<T> Deref for CacheLine<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Bytes that are nobody's: what others may write there means nothing.
#[repr(C)]
pub struct Padding<const SIZE: usize>(#[cfg(not(loom))] std::cell::UnsafeCell<[u8; SIZE]>);

// SAFETY: nobody ever looks at them.
unsafe impl<const SIZE: usize> Sync for Padding<SIZE> {}

#[cfg(loom)]
impl<const SIZE: usize> Default for Padding<SIZE> {
    fn default() -> Self {
        Padding()
    }
}

/// Tells loom who writes and who reads words that one side has for itself at a time, so that it finds where both do so
/// at once. Nothing in ordinary builds.
#[derive(Default)]
pub struct Watch(#[cfg(loom)] loom::cell::UnsafeCell<()>);

impl Watch {
    #[inline(always)]
    pub fn reads(&self) {
        #[cfg(loom)]
        self.0.with(|_| ());
    }

    #[inline(always)]
    pub fn writes(&self) {
        #[cfg(loom)]
        self.0.with_mut(|_| ());
    }
}
