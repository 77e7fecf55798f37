package fencepost

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestATimeIsWrittenInUTCWhateverItsZone(t *testing.T) {
	runAt := time.Date(2099, 1, 1, 0, 0, 0, 0, time.FixedZone("by the sun", 3600+42))
	written, err := encode(Submission{Kind: "k", RunAt: runAt}.wire())
	if err != nil || !strings.Contains(string(written), `"run_at":"2098-12-31T22:59:18Z"`) {
		t.Errorf("%s %v", written, err)
	}
}

func TestADurationIsWrittenAsTheNumberThatAnyoneElseWouldWrite(t *testing.T) {
	for ms := int64(0); ms <= 100_000; ms++ {
		written, err := encode(inSeconds(time.Duration(ms) * time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		asText := strconv.FormatInt(ms/1000, 10) + "." + strconv.FormatInt(1000+ms%1000, 10)[1:]
		number, _ := strconv.ParseFloat(asText, 64)
		if want := strconv.FormatFloat(number, 'f', -1, 64); string(written) != want {
			t.Fatalf("%d ms is written as %s, not as %s", ms, written, want)
		}
	}
}
