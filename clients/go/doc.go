// Package leaderelection runs a job while this process leads an election that
// is held in PostgreSQL, by the extension leader_election. It cancels the
// job's context as soon as leadership is lost or in doubt.
//
// Make an [Elector] by [New], and call [Elector.Run]. An elector leads in
// session scope, by a connection of its own, or, with Options.TTL, by a lease,
// for which any connections will do. A job can be one that is done once for
// each due time, see [Every]. [LeaderOf] and [Follow] tell which leader an
// election has.
//
// The states, timers and guarantees are those of all client libraries of the
// extension, which clients/README.md in its repository defines. An elector runs
// at most one job at a time, it starts the job after the server has confirmed
// leadership, and it resigns after the job has stopped.
package leaderelection
