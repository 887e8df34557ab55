// What Grafana's server does for the Prometheus data source: the step of a query, its macros, frames.
import { from } from 'rxjs';
import { rangeUtil } from '@grafana/data';

const MOST_POINTS = 11_000; // of one series in one answer

export class Backend {
  constructor(prometheus, scrapeInterval) {
    this.prometheus = prometheus;
    this.scrapeMs = rangeUtil.intervalToMs(scrapeInterval);
  }

  fetch = (options) => from(this.#answered(options).then((data) => ({ data, status: 200, ok: true })));
  get = async (url, params) => (await this.#answered({ url, params })) ?? {};

  async #answered({ url, data, params }) {
    if (url.startsWith('/api/ds/query')) {
      return { results: Object.fromEntries(await Promise.all(data.queries.map((one) => this.#asked(one, data)))) };
    }
    const resource = /\/resources\/(.*)$/.exec(url);
    if (!resource) {
      throw new Error(`nothing answers ${url}`);
    }
    return this.#api(resource[1].replace(/^api\/v1\//, ''), { ...params, ...data });
  }

  async #asked(query, { from: start, to: end }) {
    try {
      return [query.refId, { status: 200, frames: await this.#frames(query, Number(start), Number(end)) }];
    } catch (error) {
      return [query.refId, { status: 400, error: `${error.message}: ${query.expr}` }];
    }
  }

  async #frames(query, start, end) {
    const step = this.#step(query, start, end);
    const expr = withMacros(query.expr, step, this.scrapeMs, end - start);
    const aligned = (ms) => Math.floor(ms / step) * step;
    const found = query.instant
      ? await this.#api('query', { query: expr, time: end / 1000 })
      : await this.#api('query_range', {
          query: expr, start: aligned(start) / 1000, end: aligned(end) / 1000, step: step / 1000,
        });
    return found.data.result.map((one) => frame(query, one, step, found.data.resultType));
  }

  #step(query, start, end) {
    const least = query.interval ? rangeUtil.intervalToMs(query.interval) : query.intervalMs;
    const wanted = rangeUtil.roundInterval((end - start) / (query.maxDataPoints || 1));
    return Math.max(least, wanted, rangeUtil.roundInterval((end - start) / MOST_POINTS));
  }

  async #api(path, params) {
    const body = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== undefined));
    const post = /^query/.test(path);
    const answer = await fetch(`${this.prometheus}/api/v1/${path}${post ? '' : `?${body}`}`,
      post ? { method: 'POST', body } : {});
    const json = await answer.json();
    if (json.status !== 'success') {
      throw new Error(json.error);
    }
    return json;
  }
}

function withMacros(expr, step, scrape, range) {
  const rate = Math.max(step + scrape, 4 * scrape);
  const values = {
    __rate_interval: `${rate}ms`, __interval: `${step}ms`, __interval_ms: `${step}`,
    __range: `${Math.round(range / 1000)}s`, __range_s: `${Math.round(range / 1000)}`, __range_ms: `${range}`,
  };
  return expr.replace(/\$(?:(__\w+)|\{(__\w+)\})/g, (all, one, other) => values[one ?? other] ?? all);
}

function frame(query, { metric, values, value }, step, resultType) {
  const points = values ?? [value];
  const { __name__: name = 'Value', ...labels } = metric;
  const legend = query.legendFormat === '__auto' ? undefined
    : query.legendFormat.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => metric[label] ?? '');
  return {
    schema: {
      refId: query.refId,
      meta: { type: 'timeseries-multi', typeVersion: [0, 1], custom: { resultType } },
      fields: [
        { name: 'Time', type: 'time', typeInfo: { frame: 'time.Time' }, config: { interval: step } },
        {
          name, type: 'number', typeInfo: { frame: 'float64' }, labels: metric.__name__ ? metric : labels,
          config: legend ? { displayNameFromDS: legend } : {},
        },
      ],
    },
    data: { values: [points.map(([at]) => Math.round(at * 1000)), points.map(([, text]) => Number(text))] },
  };
}
