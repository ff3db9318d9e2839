//! That work goes on, for a person at a terminal: a line on standard error, nowhere else, once it
//! takes long.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line that says what is waited for. It goes when this is dropped.
#[derive(Debug)]
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    /// Not shown yet.
    pub(super) fn hidden() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self(bar.with_style(ProgressStyle::default_spinner()))
    }

    /// Shows it from now on; where standard error is no terminal it stays hidden.
    pub(super) fn show(&self) {
        self.0.set_draw_target(ProgressDrawTarget::stderr());
        self.0.enable_steady_tick(TICK);
    }

    /// What it says, shown or not.
    pub(super) fn say(&self, text: impl Into<String>) {
        self.0.set_message(text.into());
    }

    /// Writes without the line in between.
    pub(super) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Does the work, and says so where it takes long.
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

/// What is shorter shows nothing.
pub(super) const LONG: Duration = Duration::from_millis(500);

const TICK: Duration = Duration::from_millis(100);
