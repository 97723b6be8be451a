
// The fleet: the page of a daemon that belongs to none has no place for it.

// Rows that the table has at most.
const FLEET_ROWS = 300;
// The last answer, and when it came.
const told = { table: null, at: 0 };

async function askFleet() {
  try {
    if (state.paused || document.hidden) return;
    const answer = await fetch("/api/v1/fleet");
    const table = await answer.json();
    if (table.schema !== "onramp.fleet-table") throw new Error(table.error);
    told.table = table;
    told.at = Date.now();
  } catch {
    // The daemon has gone, which the page says elsewhere. The table stays, and its age grows.
  } finally {
    showFleet();
    setTimeout(askFleet, 1000);
  }
}

function showFleet() {
  const { table, at } = told;
  if (!table) return;
  const never = table.age_seconds === null;
  const waited = (Date.now() - at) / 1000;
  const age = time((table.age_seconds + waited) * 1e9);
  const lost = table.error !== null || waited > STALE_MS / 1000;
  $("fleet").classList.toggle("old", lost);
  $("fleet-gone").hidden = !lost;
  const why = table.error === null ? "" : table.error + ". ";
  const said = never ? why : `${why}These figures are ${age} old.`;
  if ($("fleet-gone").textContent !== said) $("fleet-gone").textContent = said;
  const rows = table.limits.flatMap(limitRows);
  const shown = rows.slice(0, FLEET_ROWS);
  $("limits").hidden = rows.length === 0;
  $("fleet-none").hidden = never || rows.length > 0;
  $("limits").tBodies[0].replaceChildren(...shown);
  const left = rows.length - shown.length + table.limits_omitted +
    table.limits.reduce((sum, limit) => sum + limit.members_omitted, 0);
  $("fleet-more").hidden = left === 0;
  $("fleet-more").textContent = `and ${exact(left)} more`;
}

// The row of a limit, and those of its hosts or parts.
function limitRows(limit) {
  const most = limit.hosts_max;
  const members = exact(limit.members_count);
  const hosts = most === 0 ? `${members} parts` : `${members} of ${exact(most)}`;
  const rate = bits(limit.bytes_per_second);
  return [fleetRow("limit", limit, rate, hosts),
    ...limit.members.map((member) => fleetRow("host", member, "", ""))];
}

function fleetRow(style, of, rate, hosts) {
  const age = of.report_age_seconds;
  const cells = [[rate], [hosts, "wide"], [bits(of.share_bytes_per_second)],
    [bits(of.demand_bytes_per_second)], [bits(of.used_bytes_per_second)],
    [age === null ? "–" : time(age * 1e9), "wide"]];
  return make("tr", { class: style }, make("td", {}, of.name),
    ...cells.map(([text, wide]) => make("td", wide ? { class: wide } : {}, text)));
}

if ($("fleet")) askFleet();
