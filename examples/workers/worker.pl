#!/usr/bin/env perl
# A correct worker with Perl's core modules, on Unix: perl worker.pl http://127.0.0.1:8000 my-queue
#
# One job at a time. The handler is a forked process, which gets SIGTERM when its lease is lost, when a cancel is asked
# for, and when a shutdown takes too long; five seconds later it gets SIGKILL. The environment may have API_KEY,
# LEASE_SECONDS and DRAIN_SECONDS. Left out: several jobs at once, progress, checkpoints.
# The rules that the comments speak of are those of docs/worker-protocol.md.
use v5.28;
use warnings;
use HTTP::Tiny;
use IO::Select;
use JSON::PP;
use List::Util qw(max min);
use POSIX ();
use Sys::Hostname;
use Time::HiRes qw(CLOCK_MONOTONIC clock_gettime sleep);

die "usage: $0 http://127.0.0.1:8000 my-queue\n" if @ARGV != 2;
my ($address, $queue) = @ARGV;
my $lease     = $ENV{LEASE_SECONDS} // 60;
my $drain     = $ENV{DRAIN_SECONDS} // 20;
my $grace     = 5;
my $json      = JSON::PP->new->utf8->allow_nonref;
my %headers   = ('Content-Type' => 'application/json');
my $worker_id = hostname . '-' . unique();
our $is_waiting;
my $drain_until;
$headers{Authorization} = "Bearer $ENV{API_KEY}" if $ENV{API_KEY};
$| = 1;

# Does the work. $SIG{TERM} may be set to clear up before the end.
sub handle {
    my ($payload) = @_;
    die "$payload->{fail}\n" if defined $payload->{fail};
    sleep $payload->{seconds};
    return "waited $payload->{seconds} s";
}

# A clock that never jumps, and goes on while the process is stopped.
sub now { return clock_gettime(CLOCK_MONOTONIC) }

sub unique { return join '', map { sprintf '%08x', rand 2**32 } 1 .. 4 }

# Sends the same call until there is an answer, or the time to give up has come. Returns the status (0: no answer), the
# answer, and when the call was sent.
sub call {
    my ($method, $path, $body, $timeout, $give_up) = @_;
    my $longest = 0.1;
    my $content = defined $body ? $json->encode($body) : '';
    my $http    = HTTP::Tiny->new(timeout => $timeout, default_headers => \%headers);
    while (1) {
        my $sent   = now();
        my $answer = $http->request($method, "$address$path", {content => $content});
        my $pause  = $answer->{headers}{'retry-after'} // 0;
        $pause = 0 if $pause !~ /^\d+$/;                              # A date is somebody else's, and passed over.
        if ($answer->{status} =~ /^(408|429|5..)$/) {                 # HTTP::Tiny has 599 for no answer.
            die $answer->{content} if $answer->{content} eq "draining\n";
            sleep max $pause, $longest * (1 - rand 0.5);
            $longest = min 10, $longest * 2;
            return 0 if now() >= min $give_up // 'inf', defined $drain_until ? $drain_until + $grace : ();
            next;
        }
        sleep $pause;    # Only with an empty answer: the server shuts down, and another one takes over.
        my $content = eval { $json->decode($answer->{content}) } // {detail => $answer->{content}};
        return ($answer->{status}, $content, $sent);
    }
}

# Forks the handler; returns its process and a pipe with its outcome.
sub start {
    my ($payload) = @_;
    pipe my $reader, my $writer or die "pipe: $!";
    my $pid = fork // die "fork: $!";
    if ($pid) {
        setpgrp $pid, $pid;
        return ($pid, $reader);
    }
    # A group of its own: it is stopped with all that it has started, and Ctrl-C does not reach it.
    setpgrp;
    @SIG{qw(TERM INT)} = ('DEFAULT') x 2;
    # A result that is no JSON is a failure as well. The service takes no message of a megabyte.
    print {$writer} eval { $json->encode({result => scalar handle($payload)}) }
        // $json->encode({error => {type => 'died', message => substr $@ =~ s/\n\z//r, 0, 10_000}});
    close $writer;
    POSIX::_exit(0);
}

# From the lease to the end of the attempt.
sub run {
    my ($job, $renewed) = @_;
    my ($path, $version) = ("/v1/jobs/$job->{id}", $job->{lease_version});
    my ($pid, $pipe) = start($job->{payload});
    my ($output, $reason, $kill_at) = ('', '');
    my $stop = sub {
        $reason ||= shift;
        $kill_at //= now() + $grace;
        kill TERM => -$pid;
    };
    while (1) {
        my $next = min $renewed + $lease / 3, $kill_at // (), $reason ? () : $drain_until // ();
        if (IO::Select->new($pipe)->can_read(max 0, $next - now())) {
            sysread $pipe, $output, 65536, length $output or last;    # It has ended.
        }
        elsif ($kill_at && now() >= $kill_at) {
            kill KILL => -$pid;
            last;
        }
        elsif (!$reason && now() >= $renewed + $lease)     { $stop->('lease_lost') }
        elsif (!$reason && now() >= ($drain_until // 'inf')) { $stop->('shutdown') }
        elsif (now() >= $renewed + $lease / 3) {
            my ($status, $answer, $sent) =
                call(POST => "$path/heartbeat", {lease_version => $version}, $lease / 3, $renewed + $lease);
            $renewed = $sent if $status == 200;
            $stop->('lease_lost') if $status =~ /^4/;
            $stop->('cancelled') if $status == 200 && $answer->{cancel_requested};
        }
    }
    waitpid $pid, 0;
    my $outcome = eval { $json->decode($output) } // {error => {type => 'killed', message => "ended with $?"}};
    return 'lost' if $reason eq 'lease_lost';    # Somebody else may have the job by now.
    return end($path, complete => {lease_version => $version, %$outcome}) if exists $outcome->{result};
    return end($path, release  => {lease_version => $version}) if $reason eq 'shutdown';
    $outcome->{error} = {type => 'cancelled', message => 'told to stop'} if $reason eq 'cancelled';
    return end($path, fail => {lease_version => $version, %$outcome});
}

# Ends the attempt; returns what became of the job.
sub end {
    my ($path, $verb, $body) = @_;
    my ($status, $answer) = call(POST => "$path/$verb", $body, 30);
    return $answer->{state} if $status == 200;
    return 'lost' if $status == 404 || $status == 409;
    die "$path/$verb: ", $status && $answer->{detail}, "\n" if $verb ne 'complete';
    my %error = (type => 'result_refused', message => $answer->{detail});
    return end($path, fail => {lease_version => $body->{lease_version}, error => \%error, retryable => JSON::PP::false});
}

sub lease {
    # The lease counts from before the call, so the call should not wait for most of it.
    my $wait = min 20, $lease / 3;
    my %wish = (worker_id => $worker_id, queues => [$queue], request_id => unique());
    @wish{qw(wait_seconds lease_seconds)} = ($wait, $lease + 0);
    local $is_waiting = 1;
    die "draining\n" if $drain_until;
    return call(POST => '/v1/leases', \%wish, $wait + 10, now() + $lease);
}

$SIG{TERM} = $SIG{INT} = sub {
    $drain_until //= now() + $drain;
    die "draining\n" if $is_waiting;
};
my $problem = '';
until ($drain_until || $problem) {
    my ($status, $answer, $sent) = eval { lease() };
    last if $@ eq "draining\n";
    die $@ if $@;
    $problem = "$status $answer->{detail}\n" if $status && $status != 200;
    say "$_->{id} ", run($_, $sent) for @{$answer->{jobs} // []};
}
# What is held now came with an answer that nobody has read.
my ($status, $held) = call(GET => "/v1/leases?worker_id=$worker_id", undef, $grace, now() + $grace);
for my $held (@{$held->{leases} // []}) {
    say "$held->{job_id} ", end("/v1/jobs/$held->{job_id}", release => {lease_version => $held->{lease_version}});
}
die $problem if $problem;
