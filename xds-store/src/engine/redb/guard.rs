//! Panics of redb are errors: it panics on pages that are damaged so that its checksums were not looked at.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::StorageError;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread would be an error of the engine. A program whose panic hook prints more than a
/// line may leave it out then: the error has the text of the panic.
#[must_use]
pub fn is_guarded() -> bool {
    IS_GUARDED.get()
}

/// Does some work of the library alone: a panic in it means damaged pages. No code of others runs in it, whose
/// defects would be taken for that.
pub(super) fn guarded<T, E: From<StorageError>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let before = IS_GUARDED.replace(true);
    // What the library may have left half done is used for nothing but reads of other pages, and to close it.
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(before);
    done.unwrap_or_else(|panic| {
        let text = format!("a page cannot be read: {}", text_of(&*panic));
        Err(StorageError::Corrupted(text).into())
    })
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a reason")
}
