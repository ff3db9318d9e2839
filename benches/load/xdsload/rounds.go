package main

// The changes of a round, and the streams that they affect.

// audience has the subscriptions of the streams.
type audience struct {
	streams  []*stream
	all      bool                // each stream subscribes to every load assignment
	owner    map[int32][]*stream // else: the streams of each
	variants int                 // V: stream i has variant i mod V; 0: there are none
	changed  int                 // K: a round changes the variants 0..K; 0: all of them
}

// changedIdx is the j-th of count load assignments that a round changes.
func changedIdx(round, j, total, count int) int { return (round*7919 + j*(total/count)) % total }

func changedSet(round, total, count int) []int32 {
	r := make([]int32, count)
	for j := range r {
		r[j] = int32(changedIdx(round, j, total, count))
	}
	return r
}

// concerned gives each affected stream the changes that it must see.
func (a *audience) concerned(changed []int32) map[*stream][]int32 {
	m := map[*stream][]int32{}
	for _, k := range changed {
		of := a.owner[k]
		if a.all {
			of = a.streams
		}
		for _, s := range of {
			if a.sees(s) {
				m[s] = append(m[s], k)
			}
		}
	}
	return m
}

func (a *audience) sees(s *stream) bool {
	return a.variants == 0 || a.changed == 0 || s.idx%a.variants < a.changed
}

// bystanders counts the streams of a loop that got a response in a round that does not affect them.
func bystanders(l *loop, streams []*stream, concerned map[*stream][]int32) (n int) {
	for _, s := range streams {
		if _, ok := concerned[s]; !ok && s.c.lp == l && s.roundMsgs > 0 {
			n++
		}
	}
	return
}

// nextRound is the first later round that affects a stream, and the affected streams. Without subscriptions it is round+1.
func (a *audience) nextRound(round, total, count int) (int, []int32, map[*stream][]int32) {
	for r := round + 1; ; r++ {
		changed := changedSet(r, total, count)
		m := a.concerned(changed)
		if len(m) > 0 || r == round+total || !a.all && len(a.owner) == 0 {
			return r, changed, m
		}
	}
}
