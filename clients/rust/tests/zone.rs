// The schedule of a zone that README.md shows, and T6 of ../README.md.

use chrono::{DateTime, NaiveDateTime, TimeDelta, TimeZone, Timelike, Utc};
use leader_election::BoxError;
use std::time::SystemTime;

/// Return when the clocks of a zone show a time.
fn place(zone: &chrono_tz::Tz, shown: NaiveDateTime) -> Option<DateTime<Utc>> {
    let minute = shown.with_second(0)?;
    let later = (0..2000).map(|count| minute + TimeDelta::minutes(count));
    let mut times = std::iter::once(shown).chain(later);
    let placed = times.find_map(|time| zone.from_local_datetime(&time).earliest())?;
    Some(placed.to_utc())
}

/// Return the schedule of a cron expression for times of the day.
fn daily(
    cron: &str, zone: chrono_tz::Tz,
) -> Result<impl Fn(SystemTime) -> Option<SystemTime>, BoxError> {
    let cron: cron::Schedule = cron.parse()?;
    Ok(move |last| {
        let last = DateTime::<Utc>::from(last);
        let shown = last.with_timezone(&zone).naive_local().and_utc(); // as if it were UTC
        let mut times = cron.after(&shown).filter_map(|shown| place(&zone, shown.naive_utc()));
        times.find(|time| *time > last).map(SystemTime::from)
    })
}

#[test]
fn t6_zone() {
    use chrono_tz::{America::Sao_Paulo, Australia::Lord_Howe, Europe::Berlin, Tz};
    let check = |cron: &str, zone: Tz, from: &str, due: &[&str]| {
        let time = |text: &str| SystemTime::from(text.parse::<DateTime<Utc>>().unwrap());
        let schedule = daily(cron, zone).unwrap();
        let next = due.iter().scan(time(from), |last, _| {
            *last = schedule(*last)?;
            Some(*last)
        });
        let due: Vec<_> = due.iter().map(|text| time(text)).collect();
        assert_eq!(next.collect::<Vec<_>>(), due, "{cron} {zone}");
    };
    let spring = ["2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"];
    check("0 30 2 * * *", Berlin, "2027-03-26T12:00:00Z", &spring);
    let spring = [spring[1], "2027-03-29T00:10:15Z"];
    check("15 10,30 2 * * *", Berlin, "2027-03-27T12:00:00Z", &spring);
    let autumn = ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"];
    check("0 30 2 * * *", Berlin, "2026-10-23T12:00:00Z", &autumn);
    for from in ["2026-10-25T00:59:59Z", "2026-10-25T01:00:00Z", "2026-10-25T01:00:01Z"] {
        check("0 30 2 * * *", Berlin, from, &autumn[2..]);
    }
    let half_an_hour = ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"];
    check("0 15 2 * * *", Lord_Howe, "2026-10-02T16:00:00Z", &half_an_hour);
    let half_an_hour = ["2027-04-03T14:45:00Z", "2027-04-04T15:15:00Z"];
    check("0 45 1 * * *", Lord_Howe, "2027-04-02T18:00:00Z", &half_an_hour);
    let midnight = ["2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"];
    check("0 0 0 * * *", Sao_Paulo, "2018-11-03T12:00:00Z", &midnight);
}
