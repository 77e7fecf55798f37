#!/usr/bin/env ruby
# frozen_string_literal: true

# A correct worker with Ruby's standard library, 3.0 or later: ruby worker.rb http://127.0.0.1:8000 my-queue
#
# One job at a time. The handler has a thread, and so have the heartbeats beside it. A Stop is raised in the handler when
# its lease is lost, when a cancel is asked for, and when a shutdown takes too long. The environment may have API_KEY,
# LEASE_SECONDS and DRAIN_SECONDS. Left out: several jobs at once, progress, checkpoints.
# The rules that the comments speak of are those of docs/worker-protocol.md.

require "json"
require "net/http"
require "securerandom"
require "socket"

# Raised in a handler; the message is the reason.
class Stop < StandardError; end
# Raised in the thread that waits for work.
class Drain < StandardError; end
# A 4xx: the same call would be refused again.
class Refused < StandardError
  attr_reader :status

  def initialize(status, message)
    super(message)
    @status = status
  end

  def lease_lost? = [404, 409].include?(status)
end

# Does the work. Stop interrupts it wherever it is; `ensure` clears up.
def handle(payload)
  raise payload["fail"] if payload["fail"]

  sleep payload.fetch("seconds")
  "waited #{payload['seconds']} s"
end

class Worker
  GRACE = 5

  def initialize(address, queue, lease_seconds:, drain_seconds:, api_key:)
    @address, @queue, @lease, @drain = address, queue, lease_seconds, drain_seconds
    @lock = Mutex.new
    @headers = {"Content-Type" => "application/json"}
    @headers["Authorization"] = "Bearer #{api_key}" if api_key
    @id = "#{Socket.gethostname}-#{SecureRandom.uuid}"
  end

  # Works until a signal arrives on the queue, or the service refuses to lease.
  def run(signals)
    # A Drain that is raised in it waits until the thread does, for work.
    worker = Thread.handle_interrupt(Drain => :never) do
      Thread.new do
        work
      ensure
        signals << :ended
      end
    end
    worker.report_on_exception = false
    signals.pop
    worker.raise(Drain)
    unless worker.join(@drain)
      tell_to_stop(@handler, "shutdown")
      worker.join(GRACE)
    end
    worker.value unless worker.alive?
  ensure
    release_held
  end

  private

  def work
    loop do
      # The lease counts from before the call, so the call should not wait for most of it.
      wait = [@lease / 3, 20].min
      wish = {worker_id: @id, queues: [@queue], wait_seconds: wait, lease_seconds: @lease, request_id: SecureRandom.uuid}
      leased, sent = Thread.handle_interrupt(Drain => :immediate) do
        post("/v1/leases", wish, timeout: wait + 10, give_up: now + @lease)
      end
      leased&.fetch("jobs")&.each { |job| puts "#{job['id']} #{attempt(job, sent)}" }
    end
  rescue Drain
    nil
  end

  # From the lease to the end of the attempt; returns what became of the job.
  def attempt(job, sent)
    path, version = "/v1/jobs/#{job['id']}", job["lease_version"]
    # A result that is no JSON is a failure as well.
    handler = @handler = Thread.new { handle(job["payload"]).tap { |result| JSON.generate(result) } }
    handler.report_on_exception = false
    beats = Thread.new { beat(path, version, sent, handler) }
    begin
      result = handler.value
    rescue Exception => error # Whatever ends a handler is reported.
    end
    case [handler[:stop], error]
    in ["lease_lost", _] then "lost" # Somebody else may have the job by now.
    in [_, nil] then complete(path, version, result)
    in ["shutdown", _] then finish("#{path}/release", {lease_version: version})
    in [reason, _] then fail_with(path, version, reason || error.class.name, error.message)
    end
  ensure
    beats&.kill
  end

  # Renews the lease every third of its time; stops the handler when it is lost, or when a cancel is asked for.
  def beat(path, version, renewed, handler)
    loop do
      sleep [renewed + @lease / 3 * rand(0.9..1.0) - now, 0].max
      answer, sent = post("#{path}/heartbeat", {lease_version: version}, timeout: @lease / 3, give_up: renewed + @lease)
      break unless answer

      renewed = sent
      tell_to_stop(handler, "cancelled") if answer["cancel_requested"]
    end
    tell_to_stop(handler, "lease_lost")
  rescue Refused
    tell_to_stop(handler, "lease_lost")
  end

  # The first reason stays.
  def tell_to_stop(handler, reason)
    @lock.synchronize do
      return if handler.nil? || handler[:stop]

      handler[:stop] = reason
      handler.raise(Stop, reason)
    end
  end

  def complete(path, version, result)
    finish("#{path}/complete", {lease_version: version, result: result})
  rescue Refused => refusal
    fail_with(path, version, "result_refused", refusal.message, retryable: false)
  end

  def fail_with(path, version, type, message, retryable: true)
    # The service takes no message of a megabyte, and JSON none that is no text.
    error = {type: type, message: message.dup.force_encoding(Encoding::UTF_8).scrub[0, 10_000]}
    finish("#{path}/fail", {lease_version: version, error: error, retryable: retryable})
  end

  def finish(path, body, **limits)
    job, = post(path, body, **limits)
    job ? job["state"] : "unanswered"
  rescue Refused => refusal
    raise unless refusal.lease_lost?

    "lost"
  end

  # Gives back what is held now: by a handler that did not end in time, or in an answer that nobody has read.
  def release_held
    held, = call(Net::HTTP::Get, "/v1/leases?worker_id=#{@id}", nil, timeout: GRACE, give_up: now + GRACE)
    held&.fetch("leases")&.each do |lease|
      body = {lease_version: lease["lease_version"]}
      state = finish("/v1/jobs/#{lease['job_id']}/release", body, timeout: GRACE, give_up: now + GRACE)
      puts "#{lease['job_id']} #{state}"
    end
  end

  def post(path, body, **limits)
    call(Net::HTTP::Post, path, body, **limits)
  end

  # Sends the same call until there is an answer, and returns it with the time of sending; nil when it is time to give up.
  def call(method, path, body, timeout: 30, give_up: Float::INFINITY)
    longest = 0.1
    content = JSON.generate(body) if body
    while (sent = now) < give_up
      answer = send_once(method, path, content, timeout)
      pause = answer ? answer["Retry-After"].to_i : 0
      case answer&.code.to_i
      when 200
        sleep pause # Only with an empty answer: the server shuts down, and another one takes over.
        return JSON.parse(answer.body, max_nesting: false), sent
      when 0, 408, 429, 500.. then sleep [pause, longest * rand(0.5..1.0)].max
      else raise Refused.new(answer.code.to_i, answer.body)
      end
      longest = [longest * 2, 10].min
    end
  end

  def send_once(method, path, content, timeout)
    uri = URI(@address + path)
    limits = {use_ssl: uri.scheme == "https", open_timeout: timeout, read_timeout: timeout, max_retries: 0}
    Net::HTTP.start(uri.host, uri.port, **limits) { |http| http.request(method.new(uri, @headers), content) }
  rescue SystemCallError, SocketError, IOError, Timeout::Error, Net::ProtocolError
    nil
  end

  # A clock that never jumps, and goes on while the process is stopped.
  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end

abort "usage: #{$PROGRAM_NAME} http://127.0.0.1:8000 my-queue" if ARGV.size != 2
$stdout.sync = true
signals = Thread::Queue.new
%w[TERM INT].each { |name| trap(name) { signals << name } }
Worker.new(
  *ARGV,
  lease_seconds: ENV.fetch("LEASE_SECONDS", 60).to_f,
  drain_seconds: ENV.fetch("DRAIN_SECONDS", 20).to_f,
  api_key: ENV["API_KEY"]
).run(signals)
