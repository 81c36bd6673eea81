package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delayd/delayd/test/fixture"
)

func exampleReport() *report {
	ms := func(tenths ...int) (l fixture.Latencies) {
		for _, t := range tenths {
			l = append(l, time.Duration(t)*100*time.Microsecond)
		}
		return l
	}
	return &report{
		kernel:    fixture.Kernel{Release: "7.3.1", HZ: 100, Machine: "UML", CPUs: 2},
		undelayed: ms(1, 1, 1),
		rows: []row{
			{asked: 500 * time.Microsecond, delayd: ms(6, 6, 7)},
			{asked: 20 * time.Millisecond, dm: ms(198, 199, 202), delayd: ms(201, 202, 203)},
		},
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	r := exampleReport()
	r.print(&b)
	for _, want := range []string{
		"  undelayed | the device itself: mean 0.100, median 0.100, min 0.100\n",
		"        0.5 |        -         -   |    0.633     0.600     0.600   | +0.000 (+0.0 %)\n",
		"       20.0 |   19.967*   19.900*  |   20.200    20.200    20.100   | +0.100 (+0.5 %)\n",
		"* shorter than what was asked: EARLY\n",
		"timer ticks of 10 ms\n",
		"kernel 7.3.1 (UML, HZ=100, 2 CPUs)\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no line %q in\n%s", want, b.String())
		}
	}
	if early := r.early(); len(early) != 0 {
		t.Errorf("early: %v, though only dm-delay was", early)
	}
}

func TestEarlyIsMarkedAndFound(t *testing.T) {
	r := exampleReport()
	r.rows[1].delayd[0] = 19_999 * time.Microsecond
	var b strings.Builder
	r.print(&b)
	if want := "19.999*"; !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
	if early := r.early(); !slices.Equal(early, []time.Duration{20 * time.Millisecond}) {
		t.Errorf("early: %v", early)
	}
}

func TestWithoutDMDelay(t *testing.T) {
	r := exampleReport()
	r.dmMissing = fmt.Errorf("device-mapper target: %w", fixture.ErrNotAvailable)
	r.rows[1].dm = nil
	r.rows[1].delayd[0] = 20 * time.Millisecond
	var b strings.Builder
	r.print(&b)
	if !strings.Contains(b.String(), "- device-mapper target: not available here\n") || strings.Contains(b.String(), "EARLY") {
		t.Errorf("not said why:\n%s", b.String())
	}
}

func TestABusyMachineIsSaid(t *testing.T) {
	var quiet, busy strings.Builder
	r := exampleReport()
	r.print(&quiet)
	r.undelayed = append(r.undelayed, 5*time.Millisecond)
	r.print(&busy)
	if words := "the machine was busy"; strings.Contains(quiet.String(), words) || !strings.Contains(busy.String(), words) {
		t.Errorf("quiet:\n%s\nbusy:\n%s", quiet.String(), busy.String())
	}
}
