// Questions to the explorer's own server.

const TRIES = 6; // how often a busy server is asked again
const BUSY = 503;

export async function ask(path, content = null) {
  const options = {};
  if (content) {
    options.method = "POST";
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(content);
  }
  for (let tries = 0; ; tries++) {
    const answer = await fetch(path, options);
    if (answer.ok) return answer.json();
    const failure = await answer.json().catch(() => ({}));
    if (answer.status !== BUSY || tries >= TRIES) throw new Error(failure.error || `the server answers with status ${answer.status}`);
    await new Promise((done) => setTimeout(done, 250 * (tries + 1)));
  }
}

export const errorText = (error) => (error.message === "Failed to fetch" ? "The server has stopped." : error.message);

// One question of a kind at a time: while it is answered, only the newest of those that come is kept.
export function latest(work, say) {
  let running = false;
  let next = null;
  return async function go(...values) {
    if (running) {
      next = values;
      return;
    }
    running = true;
    try {
      await work(...values);
      say("");
    } catch (error) {
      say(errorText(error));
    } finally {
      running = false;
      if (next) {
        const newest = next;
        next = null;
        go(...newest);
      }
    }
  };
}
