export { LeaderElectionError, LostError, PermanentError } from './errors.js'
export { every } from './every.js'
export { follow, leader } from './follow.js'
export { Elector } from './run.js'
