//! A correct worker in Rust: cargo run --release -- http://127.0.0.1:8000 my-queue
//!
//! One job at a time. The handler has a thread, and so have the heartbeats beside it. It is told to stop when its lease is
//! lost, when a cancel is asked for, and when a shutdown takes too long. The environment may have API_KEY, LEASE_SECONDS
//! and DRAIN_SECONDS. Left out: several jobs at once, progress, checkpoints. The rules are those of docs/worker-protocol.md.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const GRACE: Duration = Duration::from_secs(5);

/// Does the work, and gives up when `stop` is raised.
fn handle(payload: &Value, stop: &Flag) -> Result<Value, String> {
    if let Some(message) = payload["fail"].as_str() {
        return Err(message.to_owned());
    }
    let seconds = payload["seconds"].as_f64().ok_or("the payload has no seconds")?;
    match stop.wait(Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?) {
        Some(reason) => Err(format!("told to stop: {reason}")),
        None => Ok(json!(format!("waited {seconds} s"))),
    }
}

/// Raised once, with a reason.
#[derive(Default)]
struct Flag(Mutex<Option<&'static str>>, Condvar);

impl Flag {
    fn raise(&self, reason: &'static str) {
        self.0.lock().unwrap().get_or_insert(reason);
        self.1.notify_all();
    }

    /// Waits until it is raised, but not longer than this, and gives the reason.
    fn wait(&self, at_most: Duration) -> Option<&'static str> {
        *self.1.wait_timeout_while(self.0.lock().unwrap(), at_most, |reason| reason.is_none()).unwrap().0
    }
}

enum Answer {
    Done(Value),
    /// 404 or 409: somebody else may have the job.
    Lost,
    /// Any other 4xx, and what it says. The same call would be refused again.
    Refused(u16, String),
    /// Nothing in time.
    Nothing,
}

struct Worker {
    address: String,
    queue: String,
    id: String,
    api_key: Option<String>,
    lease: Duration,
    agent: ureq::Agent,
    draining: AtomicBool,
    /// The flag of the handler that runs.
    running: Mutex<Option<Arc<Flag>>>,
}

impl Worker {
    /// Sends the same call until there is an answer or the time is over; says when it was last sent.
    fn call(&self, path: &str, body: &Value, timeout: Duration, until: Option<Instant>) -> (Answer, Instant) {
        let mut longest = Duration::from_millis(100);
        loop {
            let sent = Instant::now();
            if until.is_some_and(|until| sent >= until) {
                return (Answer::Nothing, sent);
            }
            let (status, content, retry_after) = self.send(path, body, timeout).unwrap_or_default();
            match status {
                200 => {
                    // With an empty answer: the server shuts down, and another one takes over.
                    thread::sleep(retry_after);
                    return (Answer::Done(content), sent);
                }
                404 | 409 => return (Answer::Lost, sent),
                0 | 408 | 429 | 500.. => thread::sleep(retry_after.max(longest.mul_f64(1.0 - random() / 2.0))),
                _ => return (Answer::Refused(status, content["detail"].to_string()), sent),
            }
            longest = (longest * 2).min(Duration::from_secs(10));
        }
    }

    fn send(
        &self,
        path: &str,
        body: &Value,
        timeout: Duration,
    ) -> Result<(u16, Value, Duration), ureq::Error> {
        let method = if body.is_null() { "GET" } else { "POST" };
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.address));
        if let Some(key) = &self.api_key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let request = request.header("Content-Type", "application/json");
        let content = if body.is_null() { String::new() } else { body.to_string() };
        let request =
            self.agent.configure_request(request.body(content)?).timeout_global(Some(timeout)).build();
        let mut answer = self.agent.run(request)?;
        let retry_after =
            answer.headers().get("Retry-After").and_then(|text| text.to_str().ok()?.parse().ok());
        let retry_after = Duration::from_secs(retry_after.unwrap_or(0));
        let content = answer.body_mut().read_json();
        match answer.status().as_u16() {
            200 => Ok((200, content?, retry_after)),
            status => Ok((status, content.unwrap_or_default(), retry_after)),
        }
    }

    /// Leases and runs jobs until the shutdown, or until the service refuses to lease.
    fn work(&self) -> Result<(), String> {
        // The lease counts from before the call, so the call should not wait for most of it.
        let wait = (self.lease / 3).min(Duration::from_secs(20));
        while !self.draining.load(SeqCst) {
            let wish = json!({
                "worker_id": self.id,
                "queues": [self.queue],
                "wait_seconds": wait.as_secs_f64(),
                "lease_seconds": self.lease.as_secs_f64(),
                "request_id": unique(),
            });
            let until = Instant::now() + self.lease;
            match self.call("/v1/leases", &wish, wait + Duration::from_secs(10), Some(until)) {
                (Answer::Done(leased), sent) => {
                    for job in leased["jobs"].as_array().into_iter().flatten() {
                        let stop = Arc::new(Flag::default());
                        *self.running.lock().unwrap() = Some(stop.clone());
                        if !self.draining.load(SeqCst) {
                            println!(
                                "{} {}",
                                job["id"].as_str().unwrap_or_default(),
                                self.run(job, sent, &stop)
                            );
                        }
                        *self.running.lock().unwrap() = None;
                    }
                }
                (Answer::Refused(_, detail), _) => return Err(detail),
                (Answer::Lost, _) => return Err(format!("{} is not the service", self.address)),
                (Answer::Nothing, _) => {}
            }
        }
        Ok(())
    }

    /// From the lease to the end of the attempt; gives what became of the job.
    fn run(&self, job: &Value, sent: Instant, stop: &Flag) -> String {
        let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap_or_default());
        let lease_version = &job["lease_version"];
        let ended = Flag::default();
        thread::scope(|scope| {
            scope.spawn(|| self.beat(&path, lease_version, sent, stop, &ended));
            let handler = scope.spawn(|| handle(&job["payload"], stop));
            let result = handler.join().unwrap_or(Err("panicked".to_owned()));
            let state = match (stop.wait(Duration::ZERO), result) {
                // Somebody else may have the job by now.
                (Some("lease_lost"), _) => "lost".to_owned(),
                (_, Ok(result)) => self.complete(&path, lease_version, &result),
                (Some("shutdown"), Err(_)) => self.release(&path, lease_version),
                (Some(reason), Err(message)) => self.fail(&path, lease_version, reason, &message, true),
                (None, Err(message)) => self.fail(&path, lease_version, "failed", &message, true),
            };
            ended.raise("ended");
            state
        })
    }

    /// Renews the lease every third of its time until `ended`; stops the handler when it is lost or to be cancelled.
    fn beat(&self, path: &str, lease_version: &Value, sent: Instant, stop: &Flag, ended: &Flag) {
        let (path, body) = (format!("{path}/heartbeat"), json!({"lease_version": lease_version}));
        let mut renewed = sent;
        loop {
            let next = renewed + (self.lease / 3).mul_f64(1.0 - random() / 10.0);
            if ended.wait(next.saturating_duration_since(Instant::now())).is_some() {
                return;
            }
            match self.call(&path, &body, self.lease / 3, Some(renewed + self.lease)) {
                (Answer::Done(answer), sent) => {
                    renewed = sent;
                    if answer["cancel_requested"] == true {
                        stop.raise("cancelled");
                    }
                }
                _ => return stop.raise("lease_lost"),
            }
        }
    }

    fn complete(&self, path: &str, lease_version: &Value, result: &Value) -> String {
        let body = json!({"lease_version": lease_version, "result": result});
        match self.end(path, "complete", &body) {
            Answer::Refused(400 | 413 | 422, detail) => {
                self.fail(path, lease_version, "result_refused", &detail, false)
            }
            answer => state(answer),
        }
    }

    fn fail(&self, path: &str, lease_version: &Value, kind: &str, message: &str, retryable: bool) -> String {
        // The service takes no message of a megabyte.
        let message: String = message.chars().take(10_000).collect();
        let error = json!({"type": kind, "message": message});
        let body = json!({"lease_version": lease_version, "error": error, "retryable": retryable});
        state(self.end(path, "fail", &body))
    }

    fn release(&self, path: &str, lease_version: &Value) -> String {
        state(self.end(path, "release", &json!({"lease_version": lease_version})))
    }

    fn end(&self, path: &str, verb: &str, body: &Value) -> Answer {
        self.call(&format!("{path}/{verb}"), body, Duration::from_secs(30), None).0
    }

    /// Gives back what is held now: by a handler that did not end in time, or in an answer that nobody has read.
    fn release_held(&self) {
        let until = Some(Instant::now() + GRACE);
        let (answer, _) = self.call(&format!("/v1/leases?worker_id={}", self.id), &Value::Null, GRACE, until);
        let Answer::Done(held) = answer else { return };
        for lease in held["leases"].as_array().into_iter().flatten() {
            let job_id = lease["job_id"].as_str().unwrap_or_default();
            let body = json!({"lease_version": lease["lease_version"]});
            let (answer, _) = self.call(&format!("/v1/jobs/{job_id}/release"), &body, GRACE, until);
            println!("{job_id} {}", state(answer));
        }
    }
}

fn state(answer: Answer) -> String {
    match answer {
        Answer::Done(job) => job["state"].as_str().unwrap_or_default().to_owned(),
        Answer::Lost => "lost".to_owned(),
        Answer::Refused(_, detail) => format!("refused: {detail}"),
        Answer::Nothing => "unanswered".to_owned(),
    }
}

/// From 0 to 1, of the only randomness that the standard library has.
fn random() -> f64 {
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}

fn unique() -> String {
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}

fn seconds(variable: &str, default: f64) -> Duration {
    Duration::from_secs_f64(env::var(variable).map_or(default, |text| text.parse().expect(variable)))
}

fn watch_signals(events: Sender<Result<(), String>>) {
    let mut signals = Signals::new([SIGTERM, SIGINT]).expect("the signals can be watched");
    thread::spawn(move || signals.forever().try_for_each(|_| events.send(Ok(()))));
}

fn main() {
    let Ok([_, address, queue]) = <[String; 3]>::try_from(env::args().collect::<Vec<_>>()) else {
        eprintln!("usage: worker http://127.0.0.1:8000 my-queue");
        process::exit(2);
    };
    let worker = Arc::new(Worker {
        address,
        queue,
        id: format!("rust-{}-{}", process::id(), unique()),
        api_key: env::var("API_KEY").ok(),
        lease: seconds("LEASE_SECONDS", 60.0),
        agent: ureq::Agent::config_builder().http_status_as_error(false).build().into(),
        draining: AtomicBool::new(false),
        running: Mutex::default(),
    });
    // An event is a signal, or the end of the work.
    let (events, happened) = channel();
    watch_signals(events.clone());
    let working = worker.clone();
    thread::spawn(move || events.send(working.work()));

    let first = happened.recv().unwrap_or(Ok(()));
    worker.draining.store(true, SeqCst);
    let running = worker.running.lock().unwrap().clone();
    if let Some(stop) = running
        && happened.recv_timeout(seconds("DRAIN_SECONDS", 20.0)).is_err()
    {
        stop.raise("shutdown");
        let _ = happened.recv_timeout(GRACE);
    }
    worker.release_held();
    if let Err(detail) = first {
        eprintln!("{detail}");
        process::exit(1);
    }
}
