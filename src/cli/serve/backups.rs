//! The backups that `xds serve --store` writes by itself (ST45).

use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use xds::admin::Trouble;
use xds::metrics::Registry;
use xds_store::backup::{Backup, BackupReader, History};
use xds_store::log::StoreRevision;
use xds_store_server::{Condition, StoreHandle};

use super::{count, time};
use crate::cli::store::backup_file::{BackupFileError, NewBackup, UNFINISHED};

#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(super) struct BackupOptions {
    /// Write backups of the store into this folder, as NODE/TIME.backup
    ///
    /// `xds store restore` makes a store of one. Keep the folder on another disk than the store. A
    /// backup that fails is in the log, in the metric xds_store_backup_failures_total and an alarm of
    /// `xds store status`, and is tried again after 5 minutes.
    #[arg(long, value_name = "DIR", requires = "store")]
    backup_dir: Option<PathBuf>,
    /// The time between two backups: a number with ms, s, m or h
    #[arg(long, value_name = "TIME", default_value = "6h", value_parser = time)]
    backup_every: Duration,
    /// How many backups are kept; those of the same node with older states are deleted
    #[arg(long, value_name = "COUNT", default_value = "14", value_parser = count)]
    backup_keep: usize,
}

/// What became of the backups.
#[derive(Debug, Clone)]
pub(super) struct Backups(Arc<Outcomes>);

#[derive(Debug)]
struct Outcomes {
    every: Duration,
    /// When the schedule began.
    started: SystemTime,
    /// When the last one was written, in seconds since 1970; 0 for never.
    last: AtomicU64,
    failures: AtomicU64,
    /// `None` after a backup that did not fail.
    failing: Mutex<Option<Failing>>,
}

/// Backups that failed since the last good one.
#[derive(Debug, Clone)]
struct Failing {
    since: SystemTime,
    last_at: SystemTime,
    count: u64,
    error: String,
}

/// Writes one backup after the other.
struct Schedule {
    folder: PathBuf,
    every: Duration,
    keep: usize,
    store: StoreHandle,
    outcomes: Arc<Outcomes>,
}

impl BackupOptions {
    /// Starts a thread that writes backups; `None` without a folder for them.
    pub(super) fn start(&self, store: &StoreHandle) -> io::Result<Option<Backups>> {
        let Some(folder) = &self.backup_dir else { return Ok(None) };
        let backups = Backups(Arc::new(Outcomes::new(self.backup_every)));
        let schedule = Schedule {
            folder: folder.join(&store.standing().borrow().head.node),
            every: self.backup_every,
            keep: self.backup_keep,
            store: store.clone(),
            outcomes: Arc::clone(&backups.0),
        };
        // It ends with the process: what it has not finished has no name yet.
        thread::Builder::new().name("store-backup".to_owned()).spawn(move || schedule.run())?;
        Ok(Some(backups))
    }
}

impl Schedule {
    fn run(&self) {
        self.remove_unfinished();
        let mut wait = self.until_first();
        loop {
            thread::sleep(wait);
            if self.store.standing().borrow().condition == Condition::Stopping {
                return;
            }
            wait = self.every;
            let written = self.write();
            if let Err(error) = &written {
                tracing::error!(folder = %self.folder.display(), "the backup of the store failed: {error}");
                wait = wait.min(AFTER_FAILURE);
            }
            self.outcomes.on_written(written.map_err(|error| error.to_string()), SystemTime::now());
        }
    }

    /// What an earlier process had not finished when it was killed. Another server of a shared store
    /// may be writing its own backup into the folder.
    fn remove_unfinished(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let written_at = entry.metadata().and_then(|file| file.modified());
            let rests = written_at.map_or(Duration::ZERO, |at| at.elapsed().unwrap_or_default());
            if entry.file_name().to_string_lossy().ends_with(UNFINISHED) && rests >= ABANDONED {
                _ = fs::remove_file(entry.path());
            }
        }
    }

    /// A restart neither skips a backup nor adds one.
    fn until_first(&self) -> Duration {
        let newest = written(&self.folder).ok().and_then(|written| written.last().cloned());
        let written_at = newest.and_then(|file| file.metadata().and_then(|file| file.modified()).ok());
        let Some(written_at) = written_at else { return Duration::ZERO };
        self.outcomes.last.store(seconds(written_at), Ordering::Relaxed);
        self.every.saturating_sub(written_at.elapsed().unwrap_or_default())
    }

    fn write(&self) -> Result<(), BackupFileError> {
        self.remove_unfinished();
        let unwritable = |error| BackupFileError::Unwritable { file: self.folder.clone(), error };
        create_folder(&self.folder).map_err(unwritable)?;
        let view = self.store.view().map_err(|error| BackupFileError::Store(error.into()))?;
        let now = SystemTime::now();
        let file = self.folder.join(name(seconds(now)));
        // Another server of a shared store may write its own backup in the same second.
        let mark = format!(".{:016x}", RandomState::new().hash_one(&file));
        let mut backup = NewBackup::create_as(&file, &mark)?;
        for part in Backup::new(view, History::Whole).map_err(BackupFileError::Store)? {
            backup.write(&part.map_err(BackupFileError::Store)?.data)?;
        }
        let header = backup.finish()?;
        self.outcomes.last.store(seconds(now), Ordering::Relaxed);
        let revision = StoreRevision::of(&header.head, header.head.revision);
        tracing::info!(file = %file.display(), %revision, records = header.records, "wrote a backup");
        let written = written(&self.folder).map_err(unwritable)?;
        for old in surplus(&written, &file, self.keep) {
            match fs::remove_file(old) {
                // Another server of the store was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(unwritable)?,
            }
        }
        Ok(())
    }
}

/// The backups in the folder, the oldest state of the store first. Their names do not say that: the clock may have been
/// ahead when one was written. Files without a readable header are left out, so they stay.
fn written(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION)
            && let Some(revision) = revision(&path)
        {
            written.push((revision, path));
        }
    }
    written.sort();
    Ok(written.into_iter().map(|(_, path)| path).collect())
}

/// The store revision that a backup has.
fn revision(file: &Path) -> Option<u64> {
    let reader = BackupReader::new(BufReader::new(File::open(file).ok()?)).ok()?;
    Some(reader.header().head.revision)
}

/// The backups that are not kept, the oldest first. The one that was just written is kept in any case.
fn surplus<'w>(written: &'w [PathBuf], newest: &'w Path, keep: usize) -> impl Iterator<Item = &'w PathBuf> {
    written.iter().filter(move |file| **file != *newest).take(written.len().saturating_sub(keep))
}

impl Outcomes {
    fn new(every: Duration) -> Self {
        let (last, failures, failing) = Default::default();
        Self { every, started: SystemTime::now(), last, failures, failing }
    }

    fn on_written(&self, written: Result<(), String>, now: SystemTime) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        *failing = written.err().map(|error| {
            self.failures.fetch_add(1, Ordering::Relaxed);
            let (since, count) = failing.as_ref().map_or((now, 0), |failing| (failing.since, failing.count));
            Failing { since, last_at: now, count: count + 1, error }
        });
    }

    fn last(&self) -> Option<SystemTime> {
        let last = self.last.load(Ordering::Relaxed);
        (last > 0).then(|| UNIX_EPOCH + Duration::from_secs(last))
    }

    /// ST72: a backup failed, or none was made although it is time.
    fn trouble(&self, now: SystemTime) -> Option<Trouble> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(Failing { since, last_at, count, error }) = failing {
            return Some(Trouble {
                detail: error,
                since: Some(since),
                last_at: Some(last_at),
                count,
                cure: "Look at the folder of --backup-dir: its disk may be full. The backup is tried again after at \
                       most 5 minutes; `xds store backup FILE` writes one now."
                    .into(),
                ..Trouble::error("store_backup_failed", "The last backup of the store failed")
            });
        }
        let since = self.last().map_or(self.started, |last| last.max(self.started));
        let due = since + self.every + self.every.max(AFTER_FAILURE);
        (now > due).then(|| Trouble {
            since: Some(due),
            cure: "The folder of --backup-dir may not answer. `xds store backup FILE` writes a backup now."
                .into(),
            ..Trouble::error(
                "store_backup_overdue",
                "A backup of the store is overdue: the last one has not ended",
            )
        })
    }
}

impl Backups {
    /// When the last one was written, also by an earlier process.
    pub(super) fn last(&self) -> Option<SystemTime> {
        self.0.last()
    }

    /// What an operator has to act on.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.0.trouble(SystemTime::now())
    }

    /// Registers the metrics.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }
}

impl Collector for Backups {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let last = self.0.last.load(Ordering::Relaxed);
        if last > 0 {
            let (name, help) =
                ("xds_store_last_backup_timestamp_seconds", "When the last backup of the store was written");
            let gauge = ConstGauge::new(i64::try_from(last).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let (name, help) = ("xds_store_backup_failures", "Backups of the store that failed");
        let failures = ConstCounter::new(self.0.failures.load(Ordering::Relaxed));
        failures.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

/// The store may have secrets, so only its user can read the folder.
fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Names sort by time.
fn name(seconds: u64) -> String {
    let at = prost_types::Timestamp { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 };
    format!("{}.{EXTENSION}", at.to_string().replace(':', "-"))
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

const EXTENSION: &str = "backup";

/// How long an unfinished backup was not written when nobody writes it any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The longest wait after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use xds_proto::xds::store::v1 as proto;
    use xds_store::commit::Draft;
    use xds_store::engine::{Engine, MemoryEngine};
    use xds_store::store::{Action, Config, Event, Identity, Store, Ticket};

    use super::*;

    #[test]
    fn st72_a_failed_or_overdue_backup_is_a_trouble_until_the_next_good_one() {
        let hour = Duration::from_secs(3600);
        let outcomes = Outcomes::new(6 * hour);
        let start = outcomes.started;
        let kind = |now| outcomes.trouble(now).map(|trouble| (trouble.kind, trouble.count));
        outcomes.last.store(seconds(start), Ordering::Relaxed);
        assert_eq!(kind(start + 11 * hour), None);
        assert_eq!(kind(start + 13 * hour), Some(("store_backup_overdue", 1)));
        for _ in 0..2 {
            outcomes.on_written(Err("no space".into()), start + hour);
        }
        assert_eq!(kind(start + 2 * hour), Some(("store_backup_failed", 2)));
        assert_eq!(outcomes.trouble(start).unwrap().detail, "no space");
        outcomes.on_written(Ok(()), start + hour);
        assert_eq!(kind(start + 2 * hour), None);
        // Short intervals: one backup may take longer than that.
        let often = Outcomes::new(Duration::from_secs(1));
        assert!(often.trouble(often.started + Duration::from_secs(299)).is_none());
    }

    #[test]
    fn st45_a_backup_that_was_written_while_the_clock_was_ahead_is_not_kept_instead_of_newer_ones() {
        let folder = std::env::temp_dir().join(format!("xds-kept-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // The first two were written a year ahead, and the third one when the clock was right again.
        let files =
            ["2027-11-27", "2027-11-28", "2026-11-28"].map(|day| folder.join(day).with_extension("backup"));
        let mut engine = MemoryEngine::default();
        engine.commit(&Store::init(&Identity::default())).unwrap();
        for (file, name) in files.iter().zip(["a", "b", "c"]) {
            commit(&mut engine, name);
            let mut backup = NewBackup::create(file).unwrap();
            for part in Backup::new(engine.view().unwrap(), History::Whole).unwrap() {
                backup.write(&part.unwrap().data).unwrap();
            }
            backup.finish().unwrap();
        }
        fs::write(folder.join("other.backup"), "not a backup").unwrap();
        let written = written(&folder).unwrap();
        assert_eq!(written, files);
        let of = |keep| surplus(&written, &files[2], keep).collect::<Vec<_>>();
        assert_eq!((of(1), of(2), of(3)), (vec![&files[0], &files[1]], vec![&files[0]], vec![]));
        // Also if it has an older state, which a copy of the disk may have brought back.
        assert_eq!(surplus(&written, &files[0], 1).collect::<Vec<_>>(), [&files[1], &files[2]]);
        fs::remove_dir_all(&folder).unwrap();
    }

    /// Commits a resource of this name.
    fn commit(engine: &mut MemoryEngine, name: &str) {
        let config = Config::new(engine.limits(), 1);
        let mut store = Store::load(&*engine.view().unwrap(), config, 0, |_| {}).unwrap();
        let key =
            proto::Key { type_url: "example.com/acme.Thing".into(), name: name.into(), when: String::new() };
        let put = proto::Put { content: Some(proto::Content::default()), ..Default::default() };
        let act = Some(proto::change::Act::Put(put));
        let changes = vec![proto::Change { key: Some(key), act, condition: None }];
        let request = proto::CommitRequest { changes, ..Default::default() };
        let event = Event::Commit(Ticket(1), Draft::parse(request, "test".into()).unwrap());
        let actions = store.step(event, 0, &*engine.reader());
        let [Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
        engine.commit(batch).unwrap();
    }

    #[test]
    fn names_are_times_that_any_file_system_takes() {
        assert_eq!(name(1_700_000_000), "2023-11-14T22-13-20Z.backup");
    }
}
