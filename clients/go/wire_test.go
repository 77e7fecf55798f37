package fencepost

import (
	"strconv"
	"testing"
	"time"
)

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
