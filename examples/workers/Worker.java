import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * A correct worker with the standard library of Java 17 or later: java Worker.java http://127.0.0.1:8000 my-queue
 *
 * <p>One job at a time. The handler has a thread, and so have the heartbeats beside it. It is interrupted when its lease is
 * lost, when a cancel is asked for, and when a shutdown takes too long. The environment may have API_KEY, LEASE_SECONDS and
 * DRAIN_SECONDS. Left out: several jobs at once, progress, checkpoints, and a JSON library: a payload reaches the handler
 * as the text that it is, for the library of your choice. The rules are those of docs/worker-protocol.md.
 */
public class Worker {
    static final Duration LEASE = seconds(System.getenv().getOrDefault("LEASE_SECONDS", "60"));
    static final Duration DRAIN = seconds(System.getenv().getOrDefault("DRAIN_SECONDS", "20"));
    static final Duration GRACE = Duration.ofSeconds(5), LONG = Duration.ofSeconds(30), NEVER = Duration.ofDays(1_000_000);

    /** Does the work, from the payload's JSON to the result's. It gives up when it is interrupted. */
    static String handle(String payload) throws Exception {
        Map<String, String> members = Json.members(payload);
        if (members.containsKey("fail")) throw new Exception(Json.text(members.get("fail")));
        Thread.sleep(seconds(members.get("seconds")).toMillis());
        return Json.quote("waited " + members.get("seconds") + " s");
    }

    /** One lease, and the thread of its handler. */
    static class Attempt {
        final String id, path, leaseVersion;
        final CompletableFuture<String> result = new CompletableFuture<>();
        final Thread handler;
        private String reason = "";

        Attempt(Map<String, String> job) {
            id = Json.text(job.get("id"));
            path = "/v1/jobs/" + id;
            leaseVersion = job.get("lease_version");
            handler = daemon(() -> {
                try {
                    result.complete(String.valueOf(handle(job.get("payload")))); // A null is JSON's null.
                } catch (Throwable problem) {
                    result.completeExceptionally(problem);
                }
            });
        }

        /** Interrupts the handler; the first reason stays. */
        synchronized void stop(String reason) {
            if (this.reason.isEmpty()) this.reason = reason;
            handler.interrupt();
        }

        synchronized String reason() {
            return reason;
        }
    }

    /** A status of 0: there was no answer in time. The lease that it gives or renews counts from when the call was sent. */
    record Answer(int status, String content, Duration sent) {
        String state() {
            return switch (status) {
                case 200 -> Json.text(Json.members(content).get("state"));
                case 404, 409 -> "lost";
                default -> "refused: " + content;
            };
        }
    }

    final String id = "java-" + UUID.randomUUID(), address, queue;
    final HttpClient http = HttpClient.newHttpClient();
    final CountDownLatch ended = new CountDownLatch(1);
    volatile boolean draining;
    volatile CompletableFuture<?> waiting = CompletableFuture.completedFuture(null);
    volatile Attempt running;

    Worker(String address, String queue) {
        this.address = address;
        this.queue = queue;
    }

    /** Leases and runs jobs until the shutdown, or until the service refuses to lease. */
    void work() throws Exception {
        // The lease counts from before the call, so the call should not wait for most of it.
        double wait = Math.min(20, LEASE.toMillis() / 3000.0);
        while (!draining) {
            String wish = String.format("{\"worker_id\": %s, \"queues\": [%s], \"wait_seconds\": %s, \"lease_seconds\": %s, "
                    + "\"request_id\": %s}", Json.quote(id), Json.quote(queue), wait, LEASE.toMillis() / 1000.0,
                    Json.quote(UUID.randomUUID().toString()));
            Answer answer = call("/v1/leases", wish, seconds("" + (wait + 10)), now().plus(LEASE));
            if (answer.status == 0) continue;
            if (answer.status != 200) throw new IllegalStateException("the service grants no lease: " + answer.content);
            for (String job : Json.items(Json.members(answer.content).get("jobs"))) {
                running = new Attempt(Json.members(job));
                if (!draining) System.out.println(running.id + " " + run(running, answer.sent));
                running = null;
            }
        }
    }

    /** From the lease to the end of the attempt; gives what became of the job. */
    String run(Attempt attempt, Duration sent) throws InterruptedException {
        Thread beats = daemon(() -> beat(attempt, sent));
        attempt.handler.start();
        beats.start();
        String result = null, type = null, message = null;
        try {
            result = attempt.result.join();
        } catch (CompletionException wrapped) {
            type = wrapped.getCause().getClass().getName();
            message = String.valueOf(wrapped.getCause().getMessage());
        }
        String reason = attempt.reason();
        try {
            if (reason.equals("lease_lost")) return "lost"; // Somebody else may have the job by now.
            if (result != null) return complete(attempt, result);
            if (reason.equals("shutdown")) return end(attempt, "release", "").state();
            return fail(attempt, reason.isEmpty() ? type : reason, message, true);
        } finally {
            beats.interrupt();
        }
    }

    /** Renews the lease every third of its time; stops the handler when it is lost, or when a cancel is asked for. */
    void beat(Attempt attempt, Duration renewed) {
        try {
            while (true) {
                long third = (long) (LEASE.toMillis() / 3 * (0.9 + ThreadLocalRandom.current().nextDouble(0.1)));
                Thread.sleep(Math.max(0, renewed.plusMillis(third).minus(now()).toMillis()));
                String body = "{\"lease_version\": " + attempt.leaseVersion + "}";
                Answer answer = call(attempt.path + "/heartbeat", body, LEASE.dividedBy(3), renewed.plus(LEASE));
                if (answer.status != 200) {
                    attempt.stop("lease_lost");
                    return;
                }
                renewed = answer.sent;
                if (Json.members(answer.content).get("cancel_requested").equals("true")) attempt.stop("cancelled");
            }
        } catch (InterruptedException over) {
            // The attempt has ended.
        }
    }

    String complete(Attempt attempt, String result) throws InterruptedException {
        Answer answer = end(attempt, "complete", ", \"result\": " + result);
        if (answer.status != 400 && answer.status != 413 && answer.status != 422) return answer.state();
        return fail(attempt, "result_refused", answer.content, false);
    }

    /** The service takes no message of a megabyte. */
    String fail(Attempt attempt, String type, String message, boolean retryable) throws InterruptedException {
        return end(attempt, "fail", String.format(", \"error\": {\"type\": %s, \"message\": %s}, \"retryable\": %s",
                Json.quote(type), Json.quote(message.substring(0, Math.min(message.length(), 10_000))), retryable)).state();
    }

    Answer end(Attempt attempt, String verb, String members) throws InterruptedException {
        return call(attempt.path + "/" + verb, "{\"lease_version\": " + attempt.leaseVersion + members + "}", LONG, NEVER);
    }

    /** Sends the same call until there is an answer or it is time to give up, and a lease call until the shutdown. */
    Answer call(String path, String body, Duration timeout, Duration giveUp) throws InterruptedException {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(address + path)).timeout(timeout);
        if (body != null) request.header("Content-Type", "application/json").POST(BodyPublishers.ofString(body));
        if (System.getenv("API_KEY") != null) request.header("Authorization", "Bearer " + System.getenv("API_KEY"));
        long longest = 100;
        Duration sent = now();
        for (; sent.compareTo(giveUp) < 0; sent = now()) {
            long pause = 0;
            try {
                var call = http.sendAsync(request.build(), BodyHandlers.ofString());
                if (path.equals("/v1/leases")) waiting = call;
                if (path.equals("/v1/leases") && draining) call.cancel(true);
                HttpResponse<String> answer = call.join();
                String retryAfter = answer.headers().firstValue("Retry-After").orElse("");
                if (retryAfter.matches("\\d{1,6}")) pause = Long.parseLong(retryAfter) * 1000; // A date is passed over.
                int status = answer.statusCode();
                if (status != 408 && status != 429 && status < 500) {
                    Thread.sleep(pause); // Only with an empty answer: the server shuts down, and another one takes over.
                    return new Answer(status, answer.body(), sent);
                }
            } catch (CancellationException shutdown) {
                break;
            } catch (CompletionException unanswered) {
                // It may have been done or not: the same call again.
            }
            Thread.sleep(Math.max(pause, ThreadLocalRandom.current().nextLong(longest / 2, longest)));
            longest = Math.min(longest * 2, 10_000);
        }
        return new Answer(0, "", sent);
    }

    /** Ends the work in order: what the Java machine calls when a signal comes, and at the end of main. */
    void shutDown() {
        try {
            draining = true;
            waiting.cancel(true);
            if (running != null) ended.await(DRAIN.toMillis(), TimeUnit.MILLISECONDS);
            Attempt left = running;
            if (left != null) left.stop("shutdown");
            ended.await(GRACE.toMillis(), TimeUnit.MILLISECONDS);
            // What is held now came with an answer that nobody has read, or its handler does not listen.
            Answer held = call("/v1/leases?worker_id=" + id, null, GRACE, now().plus(GRACE));
            if (held.status != 200) return;
            for (String lease : Json.items(Json.members(held.content).get("leases"))) {
                Map<String, String> members = Json.members(lease);
                String jobId = Json.text(members.get("job_id")), body = "{\"lease_version\": " + members.get("lease_version") + "}";
                Answer released = call("/v1/jobs/" + jobId + "/release", body, GRACE, now().plus(GRACE));
                System.out.println(jobId + " " + released.state());
            }
        } catch (InterruptedException hurried) {
            // The process ends anyway.
        }
    }

    public static void main(String[] arguments) {
        if (arguments.length != 2) {
            System.err.println("usage: java Worker.java http://127.0.0.1:8000 my-queue");
            System.exit(2);
        }
        Worker worker = new Worker(arguments[0], arguments[1]);
        int[] exitCode = {0};
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            worker.shutDown();
            Runtime.getRuntime().halt(exitCode[0]); // Without it a signal would be the exit code.
        }));
        try {
            worker.work();
        } catch (Exception problem) {
            System.err.println(problem.getMessage());
            exitCode[0] = 1;
        }
        worker.ended.countDown();
    }

    static Thread daemon(Runnable body) {
        Thread thread = new Thread(body);
        thread.setDaemon(true);
        return thread;
    }

    /** Of a clock that never jumps, and goes on while the process is stopped. */
    static Duration now() {
        return Duration.ofNanos(System.nanoTime());
    }

    static Duration seconds(String number) {
        return Duration.ofMillis(Math.round(Double.parseDouble(number) * 1000));
    }

    /** Takes JSON apart by one level: every part is the text that it was, so a payload and its numbers stay as they are. */
    static class Json {
        private final String text;
        private int at;

        private Json(String text) {
            this.text = text;
        }

        static Map<String, String> members(String object) {
            Map<String, String> members = new LinkedHashMap<>();
            for (Json json = new Json(object); json.hasNext(); ) members.put(text(json.next()), json.next());
            return members;
        }

        static List<String> items(String array) {
            List<String> items = new ArrayList<>();
            for (Json json = new Json(array); json.hasNext(); ) items.add(json.next());
            return items;
        }

        static String text(String quoted) {
            StringBuilder text = new StringBuilder();
            for (int i = 1; i < quoted.length() - 1; i++) {
                char next = quoted.charAt(i);
                if (next == '\\') {
                    next = quoted.charAt(++i);
                    int known = "bfnrt".indexOf(next);
                    if (known >= 0) next = "\b\f\n\r\t".charAt(known);
                    if (next == 'u') {
                        next = (char) Integer.parseInt(quoted, i + 1, i + 5, 16);
                        i += 4;
                    }
                }
                text.append(next);
            }
            return text.toString();
        }

        static String quote(String text) {
            StringBuilder quoted = new StringBuilder("\"");
            for (char next : text.toCharArray()) {
                if (next < ' ' || next == '"' || next == '\\') quoted.append(String.format("\\u%04x", (int) next));
                else quoted.append(next);
            }
            return quoted.append('"').toString();
        }

        /** Goes to the next part of an object or array. */
        private boolean hasNext() {
            while (at == 0 || ",: \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
            return "]}".indexOf(text.charAt(at)) < 0;
        }

        private String next() {
            hasNext();
            int start = at, depth = 0;
            do {
                switch (text.charAt(at++)) {
                    case '{', '[' -> depth++;
                    case '}', ']' -> depth--;
                    case '"' -> {
                        for (; text.charAt(at) != '"'; at++) if (text.charAt(at) == '\\') at++;
                        at++;
                    }
                    default -> { }
                }
            } while (depth > 0 || ",:]} \t\r\n".indexOf(text.charAt(at)) < 0);
            return text.substring(start, at);
        }
    }
}
