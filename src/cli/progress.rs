//! Shows a person at a terminal that work is in progress: a line on standard error, if the work
//! takes long.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line that says what the command waits for. Dropping this removes the line.
#[derive(Debug)]
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    /// A spinner that is not shown yet.
    pub(super) fn hidden() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self(bar.with_style(ProgressStyle::default_spinner()))
    }

    /// Shows the line from now on, if standard error is a terminal.
    pub(super) fn show(&self) {
        self.0.set_draw_target(ProgressDrawTarget::stderr());
        self.0.enable_steady_tick(TICK);
    }

    /// Sets the text of the line.
    pub(super) fn say(&self, text: impl Into<String>) {
        self.0.set_message(text.into());
    }

    /// Hides the line while `write` writes.
    pub(super) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Does the work, and shows `text` if it takes long.
pub(super) fn while_working<T>(text: &str, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (working, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            let spinner = Spinner::hidden();
            spinner.say(text);
            if ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                spinner.show();
                _ = ended.recv();
            }
        });
        let done = work();
        drop(working);
        done
    })
}

/// Shorter work shows nothing.
pub(super) const LONG: Duration = Duration::from_millis(500);

const TICK: Duration = Duration::from_millis(100);
