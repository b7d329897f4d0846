/*-------------------------------------------------------------------------
 *
 * leader_election.h
 *	  What the files of the extension share: settings and functions, each under the
 *	  file that has it.  types.h has the types.
 *
 * Words: an election is a contest for one job in one database; a term is one
 * unbroken period of one leader, known by its token; a candidate waits to be
 * elected.  doc/internals.md explains how the parts work together.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEADER_ELECTION_H
#define LEADER_ELECTION_H

#include "types.h"

/* settings.c */
extern bool le_log_terms;
extern bool le_notify;
extern int64 le_session_token;
extern int	le_max_ttl;
extern int	le_grace_period;
extern bool le_declared_only;
extern int	le_dead_peer_timeout;
extern int	le_max_terms_per_session;
extern int	le_max_tracked;
extern int	le_max_elections;
extern int	le_max_elections_per_role;
extern void le_define_settings(void);

/* leader_election.c */
extern void le_register_callbacks(void);

/* safely.c */
extern bool le_try(void (*action) (void *), void *argument);
extern void le_catching(void (*action) (void *), void *argument);

/* clock.c */
extern uint64 le_monotonic_us(void);

/* end_reason.c */
extern const char *le_reason_name(LeEndReason reason);
extern bool le_is_resignation(LeEndReason reason);

/* election_key.c */
extern void le_election_tag(const LeElectionKey *key, LOCKTAG *tag);
extern bool le_has_lock(const LeElectionKey *key);
extern void le_election_by_name(LeElection *election, const text *name);
extern void le_election_by_key(LeElection *election, int64 key);
extern const char *le_election_label(const LeElectionKey *key, const char *name);
extern void le_refuse_collision(const LeElection *election, const char *name);
extern char *le_escape_line(const char *string);

/* election_lock.c */
extern bool le_acquire_for_xact(const LeElection *election, bool dont_wait);
extern void le_release_for_xact(const LeElection *election);
extern void le_release_in_vain(const LeElection *election);
extern void le_acquire_for_session(const LeElection *election);
extern void le_release_for_session(const LeElection *election);
extern bool le_move_to_front(const LeElection *election, int pid);
extern bool le_lock_unbroken(const LeElection *election, bool *session_level);
extern bool le_lock_is_busy(const LeElection *election);
extern bool le_lock_is_anothers(const LeElection *election);
extern int *le_list_holders(const LeElection *election, int *count);
extern int *le_list_guarded(const LeElection *election, int *count);
extern bool le_guard_is_contended(const LeElection *election);
extern bool le_find_holder(const LeElection *election, int *pid);
extern bool le_acquire_guard(const LeElection *election, LOCKMODE mode, bool dont_wait);
extern void le_release_guard(const LeElection *election, LOCKMODE mode);

/* extension_relation.c */
extern bool le_extension_exists(void);
extern bool le_is_extension(Oid extension);
extern Oid	le_sequence_oid(LeSequence sequence);
extern Oid	le_lease_table(void);
extern Oid	le_declaration_table(void);
extern void le_require_unaltered(Relation table, LeTable which);
extern int64 le_sequence_read(LeSequence sequence);
extern XLogRecPtr le_sequence_set(LeSequence sequence, int64 value);

/* durability.c */
extern void le_make_durable(XLogRecPtr written);
extern bool le_has_synchronous_standbys(void);
extern bool le_is_durable(XLogRecPtr written);
extern bool le_await_durable(XLogRecPtr written, uint64 until);

/* registry.c */
extern dshash_table *le_registry_election_table(void);
extern dshash_table *le_registry_candidate_table(void);
extern dshash_table *le_registry_database_table(void);
extern dsa_area *le_registry_area(void);
extern void le_registry_count_lease_eviction(void);
extern LeCounters *le_registry_counters(void);
extern bool le_registry_store_string(const char *string, dsa_pointer *stored);
extern const char *le_registry_string(dsa_pointer stored);
extern void le_registry_free(dsa_pointer *stored);
pg_noreturn extern void le_throw_registry_full(void);
extern uint64 le_registry_primary_since(void);
extern pg_atomic_uint32 *le_registry_used_by(Oid role, dsa_pointer *place);
extern uint64 le_registry_lease_evictions(void);
extern uint64 le_registry_reloads(bool begin);
extern void le_registry_note_guard(void);
extern bool le_registry_has_guards(void);

/* registry_candidates.c */
extern void le_registry_add_candidate(const LeCandidate *candidate);
extern void le_registry_set_wait(int pid, LeWait waits_for);
extern void le_registry_set_gave_way(int pid, bool gave_way);
extern void le_registry_add_keys(int pid, const int64 *keys, int count);
extern void le_registry_remove_candidate(int pid);
extern bool le_registry_copy_keys(const LeCandidate *candidate, int64 *keys);
extern LeCandidate *le_registry_list_candidates(int *count);

/* registry_databases.c */
extern LeDatabase *le_registry_lock_database(bool exclusive);
extern void le_registry_unlock_database(LeDatabase *database);
extern void le_registry_note_eviction(Oid database, uint64 reloads);
extern void le_registry_forget_end(Oid database, uint64 lost_at);
extern uint64 le_registry_forgotten_at(bool declared);
extern Oid *le_registry_list_databases(int *count);
extern void le_registry_forget_database(Oid database);

/* registry_entry.c */
extern LeElectionEntry *le_registry_lock_entry(const LeElectionKey *key, bool exclusive);
extern void le_registry_unlock_entry(LeElectionEntry *entry);
extern void le_copy_entry(LeTerm *term, LeElectionEntry *entry);

/* registry_eviction.c */
extern void le_registry_bound_elections(int more);
extern void le_registry_evict_leases(void);
extern void le_registry_forget_dropped(void);

/* registry_elections.c */
extern void le_delete_entry(LeElectionEntry *entry);
extern bool le_entry_is_kept(const LeElectionEntry *entry);
extern LeElectionEntry *le_registry_lock_or_add(const LeElectionKey *key, const char *name);
extern void le_registry_rename_entry(LeElectionEntry *entry, const char *name);
extern LeElectionEntry *le_registry_watch(const LeElection *election, LeWatcher what);
extern void le_registry_unwatch(const LeElectionKey *key, LeWatcher what);
extern void le_registry_remember(const LeElection *election);
extern bool le_registry_is_followed(const LeElectionKey *key);
extern bool le_registry_copy_name(const LeElectionKey *key, char *name);
extern LeForgotten le_registry_forget(const LeElection *election);
extern uint64 le_registry_lost_at(const LeElection *election, bool declared,
								  bool has_lock);
extern void le_registry_name_successor(const LeElectionKey *key, int pid);
extern int	le_registry_successor(const LeElectionKey *key);
extern void le_registry_mark_declared(uint64 declarations);

/* registry_stats.c */
extern void le_count_begin(LeElectionEntry *entry);
extern void le_count_loaded(LeElectionEntry *entry);
extern void le_count_end(LeElectionEntry *entry, LeEndReason reason, uint64 at);
extern void le_registry_count_denial(const LeElection *election);
extern void le_registry_note_wait(const LeElectionKey *key, uint64 waited_us);
extern LeStatistics *le_registry_list_statistics(int *count);
extern void le_registry_reset_statistics(void);
extern TimestampTz le_registry_stats_reset(void);

/* registry_terms.c */
extern bool le_registry_read(const LeElectionKey *key, LeTerm *term);
extern bool le_registry_is_led(const LeElectionKey *key, int64 token);
extern void le_clear_term(LeElectionEntry *entry, LeEndReason reason);
extern void le_registry_begin_term(const LeTerm *term, LeNews *before);
extern void le_registry_add_lease(const LeTerm *term, LeElectionEntry **kept);
extern void le_registry_restore_lease(const LeTerm *term);
extern bool le_registry_end_term(const LeElectionKey *key, int64 token,
								 LeEndReason reason, LeNews *news);
extern void le_registry_note_void(const LeElectionKey *key, int64 token,
								  XLogRecPtr voided_at);
extern bool le_registry_note_lost(const LeElectionKey *key, int64 token);
extern bool le_registry_set_deposed(const LeElectionKey *key, int64 token,
									const char *by, const char *why);
extern void le_registry_set_scope(const LeElectionKey *key, int64 token, LeScope scope);
extern void le_registry_look(const LeElectionKey *key, LeSight *sight);
extern void le_registry_set_value(const LeElectionKey *key, int64 token,
								  dsa_pointer *value);
extern bool le_registry_copy_value(const LeElectionKey *key, int64 token, char *value);
extern LeTerm *le_registry_list_terms(int *count);
extern int	le_registry_list_ended_leases(LeTerm *array, int capacity, uint32 *leases);

/* registry_news.c */
extern void le_news_forget(LeElectionEntry *entry);
extern void le_news_keep(LeElectionEntry *entry);
extern void le_news_begin(LeElectionEntry *entry);
extern void le_news_loaded(LeElectionEntry *entry);
extern void le_news_end(LeElectionEntry *entry, LeEndReason reason);
extern bool le_news_owed(const LeElectionEntry *entry);
extern void le_news_copy(LeNews *news, LeElectionEntry *entry);
extern void le_news_take(LeNews *news, LeElectionEntry *entry);
extern void le_copy_deposition(LeNews *news, const LeElectionEntry *entry);
extern bool le_registry_find_news(const LeElectionKey *key, LeNews *news);
extern bool le_registry_read_ended(const LeElectionKey *key, int64 token, LeNews *news);
extern bool le_registry_precede_lease(const LeElectionKey *key, int64 token,
									  LeTerm *term, LeNews *before);
extern bool le_registry_end_foreseen(const LeElectionKey *key, int64 token,
									 LeNews *news);
extern void le_registry_end_unforeseen(const LeElectionKey *key, int64 token);
extern bool le_registry_is_untold(const LeElectionKey *key, int64 token, uint8 what);
extern bool le_registry_claim_news(const LeElectionKey *key, int64 token, uint8 what);

/* registry_leases.c */
extern LeLeaseAnswer le_registry_lease(const LeElection *election, int64 token,
									   Oid lease_table, const LeLeaseOrder *order,
									   Oid *role, int64 *old_ttl_us);
extern bool le_registry_close_lease(const LeElectionKey *key, int64 token,
									bool *expired, LeNews *news);
extern LeElectionEntry *le_registry_find_lease(const LeElectionKey *key);
extern bool le_registry_begin_lease(const LeElectionKey *key, int64 token);
extern void le_registry_load_lease(const LeTerm *term);
extern int	le_registry_start_loaded(Oid lease_table);

/* token.c */
extern int64 le_next_token(uint64 until);

/* origin.c */
#define LE_TOKEN_MAX	((INT64CONST(1) << 53) - 1)
extern void le_require_primary(void);
extern int64 le_origin_now(bool of_tokens);
extern int64 le_first_token(int64 last, int64 then, int64 now,
							const struct timeval *clock);
extern uint64 le_grants_from(void);
pg_noreturn extern void le_throw_not_yet(const LeElection *election, uint64 grants_from);

/* xact_list.c */
extern void le_xact_list_each(dlist_head *list, void (*visit) (LeXactItem *item));
extern void le_xact_list_abort(dlist_head *list, SubTransactionId mine,
							   void (*remove) (LeXactItem *item));
extern void le_xact_list_commit(dlist_head *list, SubTransactionId mine,
								SubTransactionId parent);

/* term.c */
extern LeHeldTerm *le_held_term(const LeElection *election);
extern bool le_leads_for_session(void);
extern int	le_count_held(void);
extern void le_fill_term(LeTerm *term, const LeBid *bid, const LeIdentity *identity);
extern int64 le_begin_term(const LeBid *bid, const LeIdentity *identity);
extern void le_hold_for_session(LeHeldTerm *held);
extern void le_hold_for_transaction(LeHeldTerm *held);
extern void le_let_go_for_session(LeHeldTerm *held);
extern int	le_let_go_all_for_session(void (*before) (const LeHeldTerm *held));
extern void le_terms_before_prepare(void);
extern void le_verify_terms(void *unused);
extern void le_terms_before_commit(void *unused);
extern void le_terms_not_committed(void);
extern void le_terms_at_xact_end(void);
extern void le_terms_at_subxact_commit(SubTransactionId mine, SubTransactionId parent);
extern void le_terms_at_subxact_abort(SubTransactionId mine);
extern void le_terms_at_exit(void);

/* term_log.c */
extern void le_log_begin(const LeTerm *term);
extern void le_log_end(const LeTerm *term, LeEndReason reason);
extern void le_log_deposed(const LeTerm *term, const char *by, const char *why);
extern const char *le_scope_name(LeScope scope);

/* announce.c */
extern void le_announce_begin(const LeTerm *term, bool with_commit);
extern void le_announce_news(const LeNews *news, LeDuty duty, bool with_commit);
extern void le_announce_value(const LeTerm *term);
extern void le_announce_owed(const LeElection *election);
extern void le_announcements_before_commit(void);
extern void le_announcements_at_commit(void);
extern void le_announcements_at_abort(void);
extern void le_announcements_commit(void (*commit) (void));
extern void le_announcements_at_exit(void);
extern void le_announcements_ask(void);
extern void le_register_announcements(void);

/* follow.c */
extern void le_note_lock(const LeElection *election, int64 guarded_by);
extern void le_forget_lock(const LeElection *election);
extern void le_tell_followers(const LeElectionKey *key);
extern void le_locks_released(bool is_commit, bool is_top_level);
extern ConditionVariable *le_follow_from(uint64 *place);
extern int	le_releases_since(uint64 *place, int64 *keys);

/* guard.c */
extern int64 le_guarded_by(const LeElection *election);
extern bool le_guard_transaction(const LeElection *election, int64 token,
								 bool in_trigger);
extern void le_guards_before_commit(void);
extern void le_guards_at_xact_end(void);
extern void le_guards_at_subxact_commit(SubTransactionId mine, SubTransactionId parent);
extern void le_guards_at_subxact_abort(SubTransactionId mine);

/* watch.c */
extern void le_observe_election(const LeElection *election, int64 known,
								const char *known_value, int64 wait_ms, LeSight *sight);
extern void le_stop_observing(void);

/* proclaim.c */
extern bool le_publish(const LeElection *election, int64 token, const text *value);
extern void le_unpublish(const LeElection *election, int64 token);
extern void le_proclamations_before_prepare(void);
extern void le_proclamations_before_commit(void);
extern void le_proclamations_at_commit(void);
extern void le_proclamations_at_abort(SubTransactionId mine);
extern void le_proclamations_at_subxact_commit(SubTransactionId mine,
											   SubTransactionId parent);

/* lease.c */
extern void le_require_role(const LeElection *election, Oid user, Oid role);
extern bool le_lease_is_led(const LeElection *election, int64 token);
extern bool le_lease_is_running(const LeElection *election, int64 token, Oid *role);
extern bool le_lease_renew(const LeElection *election, int64 token, int64 ttl_us);
extern bool le_lease_tell_end(const LeElectionKey *key, int64 token, LeEndReason reason);
extern bool le_lease_write_end(const LeElection *election, int64 token,
							   const LeLeaseOrder *order, XLogRecPtr *written);
extern bool le_lease_end(const LeElection *election, int64 token,
						 const LeLeaseOrder *order);
extern bool le_lease_resign(const LeElection *election, int64 token, int successor);
extern void le_lease_wait(const LeElection *election, uint64 until);

/* succession.c */
extern bool le_clear_record(const LeElection *election, bool dont_wait,
							XLogRecPtr *undurable);
extern bool le_write_off(const LeElection *election, LeTerm *term, bool dont_wait);
extern bool le_delete_rows(const LeElection *election, const LeTerm *term);
extern bool le_deletion_delays_commit(void);

/* lease_sweep.c */
extern void le_lease_sweep(bool for_room);

/* lease_grant.c */
extern int	le_grant_count(void);
extern LeGrant *le_find_grant(const LeElection *election);
extern int64 le_grant_lease(const LeBid *bid, const LeIdentity *identity);
extern void le_give_up_grant(LeGrant *grant);
extern void le_grants_before_prepare(void);
extern void le_grants_before_commit(void *unused);
extern void le_grants_at_commit(void);
extern void le_grants_at_abort(void);
extern void le_grants_at_subxact_commit(SubTransactionId mine, SubTransactionId parent);
extern void le_grants_at_subxact_abort(SubTransactionId mine);

/* lease_table.c */
extern bool le_is_lease_table(Oid table);
extern bool le_lease_runs(const LeTerm *term);
extern void le_lease_insert(const LeTerm *term);
extern XLogRecPtr le_lease_overwrite_ttl(const LeElection *election, int64 token,
										 int64 ttl_us);
extern bool le_lease_delete_void(const LeElection *election);
extern void le_lease_load(Relation table, bool again);
extern LeTerm *le_lease_list(int *count);
extern void le_lease_lock_table(void);
extern void le_lease_unlock_table(void);

/* lease_load.c */
extern void le_end_stale(const LeTerm *term);
extern void le_leases_ready(bool for_bid);
extern bool le_read_record(const LeElection *election, LeTerm *term);

/* drop_notice.c */
extern void le_watch_drops(void);

/* forget.c */
extern bool le_forget_election(const LeElection *election);
extern void le_reset_statistics(void);

/* declaration.c */
extern void (*le_declarations_read_hook) (uint64 declarations);
extern void le_require_ttl(const LeElection *election, int64 ttl_us);
extern void le_require_candidate(const LeBid *bid);
extern void le_require_own_key(const LeElection *election);
extern void le_require_observer(const LeElection *election);
extern bool le_is_kept(const LeElection *election);
extern bool le_knows_kept(const LeElectionKey *key, const char *name,
						  bool *kept);
extern bool le_may_observe(const char *name);
extern int64 le_grace_of(const LeElection *election);
extern void le_declare_election(const LeElection *election, Name candidates,
								const Interval *grace, const Interval *max_ttl,
								const bool *private_value);
extern bool le_undeclare_election(const LeElection *election);
extern void le_declarations_written(Relation table);

/* vacancy.c */
extern uint64 le_vacant_until(const LeBid *bid, LeWait *why);
extern void le_sit_out(uint64 until, LeWait why);

/* candidate.c */
extern void le_stand_in_line(const LeElection *election, const LeIdentity *identity);
extern void le_stand_for_many(const LeElection *elections, int count,
							  const LeIdentity *identity);
extern bool le_is_candidate(void);
extern void le_note_wait(LeWait waits_for);
extern void le_withdraw(void);

/* room.c */
extern void le_require_countable(int count);
extern void le_require_room_to_watch(const LeElection *election);
extern void le_require_room(const LeElection *elections, int count, int counted);

/* campaign.c */
extern void le_prepare_to_bid(void);
extern bool le_deny_other_client(const LeBid *bid);
extern bool le_acquire_now(LeBid *bid);
extern int64 le_begin_elected(const LeBid *bid, const LeIdentity *identity);
pg_noreturn extern void le_throw_lock_timeout(void);
extern int64 le_elect(LeBid *bid);

/* campaign_many.c */
extern const LeElection *le_elect_any(LeBid *bid, LeElection *elections, int count,
									  int64 *token);
extern void le_stop_following(void);

/* not_leader.c */
pg_noreturn extern void le_throw_not_leader(const LeElection *election, const char *whose);
extern void le_warn_not_leader(const LeElection *election, const char *whose);
extern void le_warn_not_deposed(const LeElection *election, const char *identity,
								const char *prepared);
extern void le_warn_bound_to_transaction(const LeElection *election);

/* resign.c */
extern bool le_resign_term(const LeElection *election);
extern int	le_resign_terms(void);
extern bool le_resign_by_token(const LeElection *election, int64 token, int successor);

/* other_client.c */
extern bool le_is_held_as(const LeHeldTerm *held, const text *identity, const char **as);
extern bool le_is_leased_as(const LeElection *election, int64 token, const text *identity);
extern void le_warn_held_as(const LeElection *election, const char *as);
extern bool le_renew_by_bid(const LeBid *bid, int64 token);
extern bool le_may_resign_as(const LeElection *election, int64 token, const text *identity);

/* handover.c */
extern bool le_resign_to(const LeElection *election, int64 token, const char *identity);
extern bool le_take_turn(const LeElection *election);
extern bool le_successor_waits(const LeElection *election, int successor);

/* depose.c */
extern bool le_depose_leader(const LeElection *election, const char *why);
extern int	le_depose_all(Oid role, const char *why);

/* arguments.c */
extern void le_refuse_restricted(FunctionCallInfo fcinfo);
extern text *le_arg_name(FunctionCallInfo fcinfo);
extern void le_check_name(const text *name);
extern text *le_arg_identity(FunctionCallInfo fcinfo, int argument);
extern char *le_arg_reason(FunctionCallInfo fcinfo, int argument);
extern text *le_arg_value(FunctionCallInfo fcinfo, int argument);
extern int64 le_arg_timeout(FunctionCallInfo fcinfo, int argument);
extern int64 le_arg_ttl(FunctionCallInfo fcinfo, int argument);
extern Name le_arg_role(FunctionCallInfo fcinfo, int argument);
extern const Interval *le_arg_limit(FunctionCallInfo fcinfo, int argument,
									const char *what, int min_ms);
extern int64 le_arg_token(FunctionCallInfo fcinfo, int argument);

/* identity.c */
extern void le_identity_fill(LeIdentity *identity, const text *given);
extern const char *le_identity_public(const LeIdentity *identity);
extern const char *le_identity_shown(const LeIdentity *identity, Oid role);

/* liveness.c */
extern void le_require_client(void);
extern void le_register_liveness(void);
extern void le_watch_client(void);
extern void le_unwatch_client(void);
extern void le_sleep(ConditionVariable *condition, uint64 until, LeSleep what);

#endif							/* LEADER_ELECTION_H */
