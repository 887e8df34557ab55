// Draws one dashboard: `window.draw(job)` builds the scene, `window.report()` tells what came of it.
import './page.css';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';
import { EventBusSrv, createTheme, locationUtil, setTimeZoneResolver, standardTransformers, standardTransformersRegistry } from '@grafana/data';
import {
  FakeEchoSrv, LocationServiceProvider, config, locationService, setAppEvents, setBackendSrv, setDataSourceSrv, setEchoSrv, setPluginImportUtils,
  setRunRequest, setTemplateSrv,
} from '@grafana/runtime';
import { sceneGraph } from '@grafana/scenes';
import { PrometheusDatasource } from '@grafana/prometheus';
import { GlobalStyles } from '@grafana/ui';
import { ThemeContext } from '@grafana/data';
import { map } from 'rxjs';
import { Backend } from './backend.js';
import { plugins, registerStandard } from './panels.jsx';
import { scene } from './scene.js';
import { expand, report, settled } from './report.js';

const PROMETHEUS = { id: 1, uid: 'prom', name: 'Prometheus', type: 'prometheus', access: 'proxy' };
const found = plugins();

function start(job) {
  const theme = createTheme({ colors: { mode: 'dark' } });
  Object.assign(config, { theme2: theme, timezone: 'utc', defaultDatasource: 'Prometheus', datasources: {} });
  config.bootData.user.timezone = 'utc';
  document.body.style.background = theme.colors.background.canvas;
  setTimeZoneResolver(() => 'utc');
  registerStandard();
  const byId = new Map(Object.values(standardTransformers).map((one) => [one.id, one])); // some are there twice
  standardTransformersRegistry.setInit(() => [...byId.values()].map((one) => ({
    id: one.id, name: one.name, transformation: async () => one, editor: () => null,
  })));
  setBackendSrv(new Backend(job.prometheus, job.scrapeInterval));
  setEchoSrv(new FakeEchoSrv());
  setAppEvents(new EventBusSrv());
  setTemplateSrv({
    replace: (text = '', scoped, format) => (scoped?.__sceneObject
      ? sceneGraph.interpolate(scoped.__sceneObject.value.valueOf(), text, scoped, format) : text),
    getVariables: () => [], containsTemplate: (text) => /\$/.test(text ?? ''), updateTimeRange: () => {},
  });
  const settings = {
    ...PROMETHEUS, meta: { id: 'prometheus', metrics: true, info: { logos: {} } },
    jsonData: { timeInterval: job.scrapeInterval, prometheusType: 'Prometheus', prometheusVersion: '2.42.0' },
  };
  const source = new PrometheusDatasource(settings);
  source.meta = settings.meta;
  setDataSourceSrv({
    get: async () => source, getInstanceSettings: () => settings, getList: () => [settings], reload: () => {},
  });
  setPluginImportUtils({
    importPanelPlugin: async (id) => found.get(id), getPanelPluginFromCache: (id) => found.get(id),
  });
  setRunRequest((datasource, request, asked) => (asked ?? datasource.query.bind(datasource))(request).pipe(
    map((answer) => ({
      state: answer.error || answer.errors?.length ? 'Error' : 'Done', series: answer.data, annotations: [],
      errors: answer.errors, error: answer.error, request, timeRange: request.range,
    }))));
  return theme;
}

window.draw = (job) => {
  const theme = start(job);
  const made = scene(job);
  locationUtil.initialize({ config, getVariablesUrlParams: () => ({}), getTimeRangeForUrl: () => job.time });
  window.report = () => report(job, made, found, theme);
  window.expand = () => expand(made);
  window.settled = () => settled(made);

  createRoot(document.getElementById('page')).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <MemoryRouter>
        <LocationServiceProvider service={locationService}>
        <h1>{job.board.title}</h1>
        <made.Component model={made} />
        {job.caption && <footer>{job.caption}</footer>}
        </LocationServiceProvider>
      </MemoryRouter>
    </ThemeContext.Provider>,
  );
};
